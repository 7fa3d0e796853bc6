-- Renews the leases of a batch of claims. Never re-creates, never adopts, never shortens.
--
-- KEYS  for each claim: the lock, its fence, its queue, its places
-- ARGV  1 idle time of the fence in ms; then for each claim: owner, ttl in ms, '1' to prolong the fence,
--       and what stood for it in the queue if it was sent the lock and has not said so yet, or ''
-- Answers for each claim {number, lease in ms}, or {'', 0}: not held
--
-- Touching the fence wakes those who wait for the lock. So it is prolonged only when that is due, and
-- touched where the lock was there and is not any more: somebody has deleted it by hand, or its lease has
-- ended. Then whoever is next in line gets it.

local idle = tonumber(ARGV[1])
local answers = {}
for i = 1, #KEYS / 4 do
    local lock, fence, queue, places = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
    local owner, ttl = ARGV[4 * i - 2], tonumber(ARGV[4 * i - 1])
    local prolong, sent = ARGV[4 * i], ARGV[4 * i + 1]
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
        if sent ~= '' then
            redis.call('ZREM', places, '@' .. sent)
        end
        local lease, number = math.max(remaining, ttl), string.match(value, '^%x+ (%d+)')
        if prolong == '1' then
            redis.call('PEXPIRE', fence, at_least(lease + idle, number or 0, clock()))
        end
        answers[i] = {number or '', lease}
    elseif value == '' and redis.call('EXISTS', lock) == 0 then
        -- Not by pcall: a replica that is behind must not say "not held".
        redis.call('PEXPIRE', fence, math.max(redis.call('PTTL', fence), idle))
        if redis.pcall('EXISTS', queue) == 1 then
            pcall(line().serve, lock, fence, queue, places, idle, sent ~= '' and sent, true)
        end
    end
end
return answers
