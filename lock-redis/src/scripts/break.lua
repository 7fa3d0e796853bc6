-- Ends the hold of the expected owner, and of nobody else: also a minimum hold that it left behind.
--
-- KEYS  1 the lock   2 its fence
-- ARGV  1 the expected owner   2 idle time of the fence in ms
-- Answers 1: ended   0: that owner does not hold the lock

local value = redis.call('GET', KEYS[1])
if value and (string.sub(value, 1, 32) == ARGV[1] or string.sub(value, 1, 33) == '-' .. ARGV[1]) then
    redis.call('DEL', KEYS[1])
    -- Wakes those who wait.
    redis.pcall('PEXPIRE', KEYS[2], tonumber(ARGV[2]))
    return 1
end
return 0
