-- Ends the hold of the expected owner, and of no other one, or a minimum hold that it left behind.
-- Grants the lock to the next waiter.
--
-- KEYS[1]  The lock.
-- KEYS[2]  Its token key.
-- KEYS[3]  Its queue.
-- KEYS[4]  Its processes.
-- KEYS[5]  Its release key.
-- ARGV[1]  The owner id that is expected.
--
-- Replies 1 if the hold has ended, and 0 if that owner does not hold the lock.

local lock, token_key, queue, processes, release_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local value, err = string_at(lock, 'a client of another kind holds the lock, and its key is no string')
if err then
    return err
end
value = value or ''
if string.sub(value, 1, 32) == ARGV[1] or string.sub(value, 1, 33) == '-' .. ARGV[1] then
    redis.call('DEL', lock, release_key)
    if redis.pcall('EXISTS', queue) == 1 then
        pcall(queue_functions().grant_next, lock, token_key, queue, processes, nil, false)
    end
    return 1
end
return 0
