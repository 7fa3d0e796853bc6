-- Releases a lock for which nobody waits: a waiter marks the value.
--
-- KEYS[1]  The lock.
-- ARGV[1]  Its value.
--
-- Replies 1, or 0 if it did nothing: then release.lua has to.

if redis.pcall('GETRANGE', KEYS[1], '0', '255') == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
