-- One attempt to get the lock. The same owner again is the same acquisition.
--
-- KEYS  1 the lock   2 its token key   3 its queue   4 its processes   5 the tombstone of this owner
--       6 the release key, if it waits without a queue entry
-- ARGV  1 owner   2 ttl in ms   3 retention of the token key in ms; empty ones at the end may be missing:
--       4 label, or ''   5 the number of its arrival, or '' if it has none
--       6 '1' if waiters have to mark the lock, because its holder may release it by a command that
--       does not check for waiters: it deletes the holder's value, and a marked lock has another value
--       7 the number to exceed, or ''
--       8 if it queues: the channel of its process, with the digits of the connection
-- Answers number: granted for the ttl, under that number
--         {1, number, lease in ms, now, 0}: granted
--         {0, arrival or '', remaining ms, or -1 without expiry, now, flags}: held by a client of this library
--         {2, the same}: held by a foreign client, which left no owner id
--         {3, '', 0, now, 0}: this owner was released before
-- where now is the server's time in µs, and flags the sum of 1 if the server had forgotten this process, 2 if
-- it is one of the first two in the queue, and 4 if this owner's entry was gone.
--
-- The server refuses writes (memory limit, replica, disk, rights) at the first one of a script and
-- not later. Without waiters, the first one here is the token key: a script that fails has not taken the lock.
--
-- Nearly every attempt ends in this file: the lock is free, there are no waiters, and the clock is ahead of the token key, or what is
-- to be exceeded is ahead of both: that is how a member of a quorum is asked. So it makes neither functions nor numbers
-- here, but for that: each of them costs the server about as much as a command does.

local lock, token_key, queue, processes, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, ttl, label, min_token = ARGV[1], ARGV[2], ARGV[4] or '', ARGV[7] or ''

local there = redis.call('EXISTS', lock, queue, tombstone, token_key)
if there <= 1 then
    -- Digits if only the token key exists. An error has no length.
    local last = there == 1 and redis.pcall('GETRANGE', token_key, '0', '16')
    local now = redis.call('TIME')
    local number, stays = now[1] .. string.sub('00000' .. now[2], -6), ARGV[3]
    local is_usual = min_token == '' or (#min_token == #number and min_token < number)
    -- Not near the end of all numbers.
    if not is_usual and #min_token == #number and min_token < '9' then
        -- Until the clock has passed the number, too.
        stays = stays + (min_token - number) / 1000
        stays = stays - stays % 1 + 1
        number, is_usual = string.format('%.0f', min_token + 1), true
    end
    if is_usual and (not last or (#last == #number and last < number and string.find(last, '^%d+$'))) then
        redis.call('SET', token_key, number, 'PX', stays)
        local held = owner .. ' ' .. number
        redis.call('SET', lock, label == '' and held or held .. ' ' .. label, 'PX', ttl)
        return number
    end
end

