-- Renews the leases of a batch of claims. Never re-creates, never adopts, never shortens.
--
-- KEYS  for each claim: the lock, its fence
-- ARGV  1 idle time of the fence in ms; then for each claim: owner, ttl in ms, '1' to prolong the fence
-- Answers for each claim {number, lease in ms}, or {'', 0}: not held
--
-- Touching the fence wakes those who wait for the lock. So it is prolonged only when that is due, and
-- touched where the lock was there and is not any more: somebody has deleted it by hand.

local idle = tonumber(ARGV[1])
local answers = {}
for i = 1, #KEYS / 2 do
    local lock, fence = KEYS[2 * i - 1], KEYS[2 * i]
    local owner, ttl, prolong = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
    answers[i] = {'', 0}
    local value = redis.pcall('GET', lock)
    if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
    end
    if type(value) == 'string' and string.sub(value, 1, 32) == owner then
        local remaining = redis.call('PTTL', lock)
        if remaining >= 0 and remaining < ttl then
            redis.call('PEXPIRE', lock, ttl)
        end
        local lease = math.max(remaining, ttl)
        if prolong == '1' then
            redis.call('PEXPIRE', fence, lease + idle)
        end
        answers[i] = {string.match(value, '^%x+ (%d+)') or '', lease}
    elseif not value then
        -- Not by pcall: a replica that is behind must not say "not held".
        redis.call('PEXPIRE', fence, idle)
    end
end
return answers
