-- Ends the hold of the expected owner, and of nobody else: also a minimum hold that it left behind. The lock
-- is the next waiter's then.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 its places
-- ARGV  1 the expected owner   2 idle time of the fence in ms
-- Answers 1: ended   0: that owner does not hold the lock

local lock, fence, queue, places, idle = KEYS[1], KEYS[2], KEYS[3], KEYS[4], tonumber(ARGV[2])
local value = redis.call('GETRANGE', lock, 0, 255)
if string.sub(value, 1, 32) == ARGV[1] or string.sub(value, 1, 33) == '-' .. ARGV[1] then
    redis.call('DEL', lock)
    if redis.pcall('EXISTS', queue) == 1 then
        pcall(line().serve, lock, fence, queue, places, idle, nil, false)
    end
    -- Wakes those who wait without a place.
    local number = string.match(value, '^%-?%x+ (%d+)') or 0
    redis.pcall('PEXPIRE', fence, at_least(idle, number, clock()))
    return 1
end
return 0
