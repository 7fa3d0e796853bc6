//! Mistakes in the scripts that a simulation has to find out: one text that reads otherwise.

use super::server::Sabotage;

pub(crate) struct Saboteur {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
}

const fn saboteur(name: &'static str, is: &'static str, becomes: &'static str) -> Saboteur {
    Saboteur { name, sabotage: Sabotage { is, becomes } }
}

pub(crate) const SABOTEURS: [Saboteur; 15] = [
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
        "local member = first(queue, is_gone)\n",
        "local member = redis.call('ZRANGE', queue, -1, -1)[1]\n",
    ),
    saboteur(
        "lets others in before those who wait",
        "redis.call('EXISTS', tombstone, queue) == 0",
        "redis.call('EXISTS', tombstone) == 0",
    ),
    saboteur(
        "serves those whose places have lapsed",
        "gone[channel] = not lasts or tonumber(lasts) <= now",
        "gone[channel] = not lasts",
    ),
    saboteur("serves those who do not hear it", "if heard > 0 then", "if true then"),
    saboteur(
        "says that it gave the lock for longer than it did",
        "{'grant', owner, number, lease, whole(now)}",
        "{'grant', owner, number, ttl, whole(now)}",
    ),
    saboteur(
        "says that it gave the lock later than it did",
        "{'grant', owner, number, lease, whole(now)}",
        "{'grant', owner, number, lease, whole(now + lease * 500)}",
    ),
    saboteur(
        "takes nobody out of the line who was served",
        "redis.call('ZREM', queue, member)\n                redis.pcall",
        "redis.pcall",
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
        "redis.call('DEL', lock)\n    if redis.pcall('EXISTS', queue) == 1 then",
        "redis.call('DEL', lock)\n    if false then",
    ),
    saboteur(
        "renews for whoever asks",
        "type(value) == 'string' and string.sub(value, 1, 32) == owner then\n        local lease",
        "type(value) == 'string' and value ~= '' then\n        local lease",
    ),
    saboteur(
        "takes nobody out of the line who leaves",
        "redis.call('ZREM', queue, mine)\n        if is_first and value",
        "if is_first and value",
    ),
];
