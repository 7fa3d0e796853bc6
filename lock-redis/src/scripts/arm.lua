-- Makes the next release of a lock wake this waiter, which is not queued.
--
-- KEYS[1]  The lock.
-- KEYS[2]  Its release key. The release deletes it, which wakes the waiter.
-- ARGV[1]  The value of the lock.
-- ARGV[2]  How long the release key lasts, in ms.

redis.call('SET', KEYS[2], '', 'NX', 'PX', ARGV[2])
if string.sub(ARGV[1], -1) ~= ' ' and redis.pcall('GETRANGE', KEYS[1], '0', '255') == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1] .. ' ', 'KEEPTTL')
end
