-- Renews the leases of a batch of claims. Never re-creates, never adopts, never shortens.
--
-- Five keys for each claim: the lock, its token key, its queue, its processes, its release key.
--
-- Five arguments for each claim:
--   1  The owner id.
--   2  The ttl in ms.
--   3  '1' to prolong the token key.
--   4  The queue entry, if the lock was sent and the client has not confirmed it yet, or ''.
--   5  The token to store, if the lock was granted without a script, or ''.
--
-- Replies {number, lease in ms} for each claim, or {'', 0} if it does not hold the lock.
--
-- If the lock is gone, deleted by hand or expired, the next waiter in the queue gets it.

local answers = {}
local queued
for i = 1, #KEYS / 5 do
    local lock, token_key, queue, processes = KEYS[5 * i - 4], KEYS[5 * i - 3], KEYS[5 * i - 2], KEYS[5 * i - 1]
    local owner, ttl, prolong, sent = ARGV[5 * i - 4], ARGV[5 * i - 3], ARGV[5 * i - 2], ARGV[5 * i - 1]
    answers[i] = {'', 0}
    local value = redis.pcall('GETRANGE', lock, '0', '255')
    if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
    end
    if type(value) == 'string' and string.sub(value, 1, 32) == owner then
        local lease, number = tonumber(ttl), string.match(value, '^%x+ (%d+)') or ''
        local remaining = redis.call('PTTL', lock)
        -- The first write: at the memory limit the server allows it, and then those that follow.
        if number == '0' or remaining < lease then
            redis.call('PEXPIRE', lock, remaining < lease and ttl or remaining)
        end
        lease = math.max(remaining, lease)
        if number == '0' and ARGV[5 * i] ~= '' then
            number = ARGV[5 * i]
            redis.call('SET', lock, owner .. ' ' .. number .. string.sub(value, 35), 'PX', lease)
        elseif number == '0' then
            -- The answer to its attempt was lost.
            local err
            number, err = grant(lock, token_key, owner, string.sub(value, 36), lease, '', clock())
            if err then
                return err
            end
        end
        if sent ~= '' then
            redis.call('ZREM', processes, '@' .. sent)
        end
        if prolong == '1' then
            -- By twice as much as necessary, so that it is not due each time.
            redis.call('PEXPIRE', token_key, retention(lease + 2 * TOKEN_RETENTION, tonumber(number) or 0, clock()))
        end
        answers[i] = {number, lease}
    else
        local is_free = value == '' and redis.call('EXISTS', lock) == 0
        if is_free then
            -- Not by pcall: a replica that lags must not reply that the lock is not held.
            redis.call('DEL', KEYS[5 * i])
        end
        if (is_free or sent ~= '') and redis.pcall('EXISTS', queue) == 1 then
            queued = queued or queue_functions()
            pcall(queued.heard_from, processes, owner, queued.channel_of(sent))
            if is_free then
                -- It held the lock. A server that was restored to older data may still have its
                -- entry.
                redis.pcall('ZREM', queue, sent)
                pcall(queued.grant_next, lock, token_key, queue, processes, nil, true)
            end
        end
    end
end
return answers
