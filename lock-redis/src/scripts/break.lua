-- Ends the hold of the expected owner, and of nobody else: also a minimum hold that it left behind.
--
-- KEYS  1 the lock   2 its fence
-- ARGV  1 the expected owner   2 idle time of the fence in ms
-- Answers 1: ended   0: that owner does not hold the lock

-- Until the clock has passed the number, too: then the clock alone is above it.
local function at_least(ms, number)
    local now = redis.call('TIME')
    local ahead = (tonumber(number) - now[1] * 1000000 - now[2]) / 1000
    return string.format('%.0f', ms + math.max(0, ahead))
end

local value = redis.call('GETRANGE', KEYS[1], 0, 255)
if (string.sub(value, 1, 32) == ARGV[1] or string.sub(value, 1, 33) == '-' .. ARGV[1]) then
    redis.call('DEL', KEYS[1])
    -- Wakes those who wait.
    redis.pcall('PEXPIRE', KEYS[2], at_least(tonumber(ARGV[2]), string.match(value, '^%-?%x+ (%d+)') or 0))
    return 1
end
return 0
