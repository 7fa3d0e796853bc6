-- Removes every trace of an owner, and nothing of anybody else's.
--
-- KEYS  1 the lock   2 its fence   3 the tombstone of this owner
-- ARGV  1 owner   2 keep others out for so many ms, or 0   3 '1' if an attempt may still arrive
--       4 how long the tombstone stays in ms   5 idle time of the fence in ms
-- Answers 1: it held the lock until now   0: it did not
--
-- Touching the fence wakes those who wait. Everything after the lock was let go is by pcall: a release
-- that was done must not end as an error. What frees memory or only sets an expiry is allowed at the
-- memory limit, and after it so is every other write of the script: that is why SET never comes first.

local owner, keep, uncertain = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local tombstone, idle = tonumber(ARGV[4]), tonumber(ARGV[5])

-- Until the clock has passed the number, too: then the clock alone is above it.
local function at_least(ms, number)
    local now = redis.call('TIME')
    local ahead = (tonumber(number) - now[1] * 1000000 - now[2]) / 1000
    return string.format('%.0f', ms + math.max(0, ahead))
end

local value = redis.pcall('GETRANGE', KEYS[1], 0, 255)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
end

local ours = type(value) == 'string' and string.sub(value, 1, 32) == owner
if ours and keep > 0 then
    redis.call('PEXPIRE', KEYS[1], keep)
    -- No longer the owner's, or a renewal that is late would prolong it.
    redis.pcall('SET', KEYS[1], '-' .. value, 'PX', keep)
    redis.pcall('PEXPIRE', KEYS[2], at_least(keep + idle, string.match(value, '^%x+ (%d+)') or 0))
elseif ours then
    redis.call('DEL', KEYS[1])
    redis.pcall('PEXPIRE', KEYS[2], at_least(idle, string.match(value, '^%x+ (%d+)') or 0))
else
    -- Does nothing, but where writes are refused: a replica that is behind must not say "not held".
    redis.call('PEXPIRE', KEYS[3], tombstone)
end

if uncertain == '1' then
    redis.pcall('SET', KEYS[3], '', 'PX', tombstone)
end
return ours and 1 or 0
