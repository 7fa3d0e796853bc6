-- One attempt to get the lock. The same owner again is the same acquisition.
--
-- KEYS[1]  The lock.
-- KEYS[2]  Its token key.
-- KEYS[3]  Its queue.
-- KEYS[4]  Its processes.
-- KEYS[5]  The tombstone of this owner.
-- KEYS[6]  The release key, if the claim waits without a queue entry.
-- KEYS[7]  The share key, if waiters let clients that poll have a part of the time. Then KEYS[6] is
--          the same unless the claim waits without a queue entry.
--
-- Arguments that are empty at the end may be missing.
-- ARGV[1]  The owner id.
-- ARGV[2]  The ttl in ms.
-- ARGV[3]  The retention of the token key in ms.
-- ARGV[4]  The label, or ''.
-- ARGV[5]  The number of its arrival, or ''.
-- ARGV[6]  '1' if waiters have to mark the lock. Its holder may release it by a command that
--          deletes the holder's value and does not check for waiters. A marked lock has another
--          value.
-- ARGV[7]  The minimum token, or ''.
-- ARGV[8]  If the claim queues: the channel of its process, with the digits of the connection.
--
-- Replies:
--   number                                   Granted for the ttl, with that token.
--   {1, number, lease in ms, now, 0}         Granted.
--   {0, arrival or '', remaining, now, flags}  Held by a client of this library.
--   {2, the same}                            Held by a foreign client, which left no owner id.
--   {3, '', 0, now, 0}                       This owner was released before.
-- `remaining` is in ms, or -1 without expiry; `now` is the server's time in µs. `flags` adds 1 if
-- the server had forgotten this process, 2 if the claim is one of the first two in the queue, and 4
-- if its entry was gone.
--
-- The server refuses writes (memory limit, replica, disk, rights) at the first write of a script,
-- and not later. Without waiters, that is the token key here: a script that fails has not taken the
-- lock.
--
-- Most attempts end in this file: the lock is free, there are no waiters, and the clock is ahead of
-- the token key. An attempt of a quorum also ends here, if its minimum token is ahead of both. This
-- path creates no functions and no other numbers: each costs the server about as much as a command.

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

