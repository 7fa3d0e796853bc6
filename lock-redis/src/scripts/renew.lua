-- Renews the leases of a batch of claims. Never re-creates, never adopts, never shortens.
--
-- KEYS  for each claim: the lock, its token key, its queue, its processes, its release key
-- ARGV  for each claim: owner, ttl in ms, '1' to prolong the token key, and its queue entry if it
--       was sent the lock and has not said so yet, or ''
-- Answers for each claim {number, lease in ms}, or {'', 0}: not held
--
-- If the lock is gone, deleted by hand or expired, the next waiter in the queue gets it.

local answers = {}
local queued
for i = 1, #KEYS / 5 do
    local lock, token_key, queue, processes = KEYS[5 * i - 4], KEYS[5 * i - 3], KEYS[5 * i - 2], KEYS[5 * i - 1]
    local owner, ttl, prolong, sent = ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
    answers[i] = {'', 0}
    local value = redis.pcall('GETRANGE', lock, '0', '255')
    if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
    end
    if type(value) == 'string' and string.sub(value, 1, 32) == owner then
        local lease, number = tonumber(ttl), string.match(value, '^%x+ (%d+)') or ''
        local remaining = redis.call('PTTL', lock)
        if remaining < lease then
            redis.call('PEXPIRE', lock, ttl)
        end
        if sent ~= '' then
            redis.call('ZREM', processes, '@' .. sent)
        end
        lease = math.max(remaining, lease)
        if prolong == '1' then
            -- By twice as much as it needs, so that it is not due each time.
            redis.call('PEXPIRE', token_key, retention(lease + 2 * TOKEN_RETENTION, tonumber(number) or 0, clock()))
        end
        answers[i] = {number, lease}
    else
        local is_free = value == '' and redis.call('EXISTS', lock) == 0
        if is_free then
            -- Not by pcall: a replica that is behind must not say "not held".
            redis.call('DEL', KEYS[5 * i])
        end
        if (is_free or sent ~= '') and redis.pcall('EXISTS', queue) == 1 then
            queued = queued or queue_functions()
            pcall(queued.heard_from, processes, owner, queued.channel_of(sent))
            if is_free then
                -- It had its turn. A server that came back to older data may know it as a waiter again.
                redis.pcall('ZREM', queue, sent)
                pcall(queued.grant_next, lock, token_key, queue, processes, nil, true)
            end
        end
    end
end
return answers
