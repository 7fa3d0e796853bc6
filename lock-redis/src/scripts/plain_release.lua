-- Releases a lock for which nobody waits.
--
-- KEYS[1]  The lock.
-- KEYS[2]  Its queue.
-- KEYS[3]  Its release key.
-- ARGV[1]  The owner id.
--
-- Replies 1, or 0 if it did nothing: then release.lua has to.

if redis.pcall('GETRANGE', KEYS[1], '0', '31') == ARGV[1] and redis.call('EXISTS', KEYS[2], KEYS[3]) == 0 then
    return redis.call('DEL', KEYS[1])
end
return 0
