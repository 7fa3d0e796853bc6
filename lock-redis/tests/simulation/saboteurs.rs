//! Mistakes in the scripts that a simulation has to find out: one text that reads otherwise.

use super::server::Sabotage;

pub(crate) struct Saboteur {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
}

const fn saboteur(name: &'static str, is: &'static str, becomes: &'static str) -> Saboteur {
    Saboteur { name, sabotage: Sabotage { is, becomes } }
}

pub(crate) const SABOTEURS: [Saboteur; 24] = [
    saboteur(
        "releases whoever holds the lock",
        "type(value) == 'string' and string.sub(value, 1, 32) == owner\nif ours",
        "type(value) == 'string' and value ~= ''\nif ours",
    ),
    saboteur(
        "does not ask the clock for fences",
        "now[1] .. string.sub('00000' .. now[2], -6)",
        "'1'",
    ),
    saboteur(
        "serves whoever came last",
        "local member, behind = first(queue, is_gone)\n",
        "local member, behind = redis.call('ZRANGE', queue, -1, -1)[1]\n",
    ),
    saboteur(
        "serves whoever came last, where that is quick",
        "local head, behind = heads[1], heads[2]",
        "local head, behind = heads[2] or heads[1], heads[1]",
    ),
    saboteur(
        "lets others in before those who wait",
        "redis.call('EXISTS', tombstone, queue) == 0",
        "redis.call('EXISTS', tombstone) == 0",
    ),
    saboteur(
        "serves those whose places have lapsed",
        "gone[channel] = not lasts or lasts - now <= 0",
        "gone[channel] = not lasts",
    ),
    saboteur(
        "gives out the number of the clock, where that is quick",
        "last < now and now < lasts and",
        "now < lasts and",
    ),
    saboteur("serves those who do not hear it", "if heard > 0 then", "if true then"),
    saboteur(
        "serves those who do not hear it, where that is quick",
        "type(heard) == 'number' and heard > 0",
        "type(heard) == 'number'",
    ),
    saboteur(
        "says that it gave the lock for longer than it did",
        "number .. ' ' .. lease .. ' ' .. now\n",
        "number .. ' ' .. ttl .. ' ' .. now\n",
    ),
    saboteur(
        "says that it gave the lock later than it did",
        "number .. ' ' .. lease .. ' ' .. now\n",
        "number .. ' ' .. lease .. ' ' .. whole(now + lease * 500)\n",
    ),
    saboteur(
        "says that it gave the lock for longer than it did, where that is quick",
        "now .. ' ' .. lease .. ' ' .. now)",
        "now .. ' ' .. ttl .. ' ' .. now)",
    ),
    saboteur(
        "takes nobody out of the line who was served",
        "redis.call('ZREM', queue, member)\n                redis.pcall",
        "redis.pcall",
    ),
    saboteur(
        "takes nobody out of the line who was served, where that is quick",
        "redis.pcall('ZREM', queue, head)",
        "",
    ),
    saboteur(
        "sends a silent process one lock after the other",
        "until it is heard of.\n                redis.call('ZREM', places, channel)",
        "",
    ),
    saboteur(
        "passes over who asks again",
        "line.hears(places, owner, channel)\n    redis.call('ZREMRANGEBYSCORE'",
        "redis.call('ZREMRANGEBYSCORE'",
    ),
    saboteur("admits who was let go", "if uncertain == '1' then", "if false then"),
    saboteur(
        "lets go of a lock and serves nobody",
        "is_plain and redis.call('EXISTS', queue) == 0",
        "is_plain",
    ),
    saboteur(
        "lets go of a lock and serves nobody, where something is unusual",
        "pcall(line().serve, lock, fence, queue, places, nil, false)\n    return 1",
        "return 1",
    ),
    saboteur(
        "waits for a lock and leaves no mark",
        "redis.call('SET', lock, value .. ' ', 'KEEPTTL')",
        "",
    ),
    saboteur(
        "renews for whoever asks",
        "type(value) == 'string' and string.sub(value, 1, 32) == owner then\n        local lease",
        "type(value) == 'string' and value ~= '' then\n        local lease",
    ),
    saboteur(
        "renews for whoever asks, where that is quick",
        "local is_mine = value == mine\n",
        "local is_mine = type(value) == 'string' and value ~= ''\n",
    ),
    saboteur(
        "says that it renewed what is gone, where that is quick",
        "others[#others + 1] = i",
        "",
    ),
    saboteur(
        "takes nobody out of the line who leaves",
        "redis.call('ZREM', queue, mine)\n        if is_first and value",
        "if is_first and value",
    ),
];
