-- Renews the leases of a batch of claims. Never re-creates, never adopts, never shortens.
--
-- KEYS  for each claim: the lock, its fence
-- ARGV  1 idle time of the fence in ms; then for each claim: owner, ttl in ms, '1' to prolong the fence
-- Answers for each claim {number, lease in ms}, or {'', 0}: not held
--
-- Touching the fence wakes those who wait for the lock. So it is prolonged only when that is due, and
-- touched where the lock was there and is not any more: somebody has deleted it by hand.

-- Until the clock has passed the number, too: then the clock alone is above it.
local function at_least(ms, number)
    local now = redis.call('TIME')
    local ahead = (tonumber(number) - now[1] * 1000000 - now[2]) / 1000
    return string.format('%.0f', ms + math.max(0, ahead))
end

local idle = tonumber(ARGV[1])
local answers = {}
for i = 1, #KEYS / 2 do
    local lock, fence = KEYS[2 * i - 1], KEYS[2 * i]
    local owner, ttl, prolong = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
    answers[i] = {'', 0}
    local value = redis.pcall('GETRANGE', lock, 0, 255)
    if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
    end
    if type(value) == 'string' and string.sub(value, 1, 32) == owner then
        local remaining = redis.call('PTTL', lock)
        if remaining < ttl then
            redis.call('PEXPIRE', lock, ttl)
        end
        local lease, number = math.max(remaining, ttl), string.match(value, '^%x+ (%d+)')
        if prolong == '1' then
            redis.call('PEXPIRE', fence, at_least(lease + idle, number or 0))
        end
        answers[i] = {number or '', lease}
    elseif value == '' then
        -- Not by pcall: a replica that is behind must not say "not held".
        redis.call('PEXPIRE', fence, math.max(redis.call('PTTL', fence), idle))
    end
end
return answers
