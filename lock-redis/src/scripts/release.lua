-- The cases that quick_release.lua leaves: the queue is in an unusual state, or the owner does not
-- hold the lock, or there is more to it.

if sent_to then
    pcall(queue_functions().notify_next, lock, queue, processes, 1, sent_to)
    return 1
elseif is_plain then
    if is_released then
        -- Granted to a process that does not listen.
        redis.pcall('DEL', lock)
    else
        redis.call('DEL', lock, release_key)
    end
    pcall(queue_functions().grant_next, lock, token_key, queue, processes, nil, false)
    return 1
end

local keep, uncertain, mine = tonumber(ARGV[2] or 0), ARGV[3], ARGV[4] or ''
local share, share_key = tonumber(ARGV[5] or 0), KEYS[7]

-- Notifies the next process when it may take the lock: after the rest of a minimum hold, and after
-- the time for which the lock then stays free for clients that poll. Returns false if there is
-- neither. The share key lasts ten times as long as the lock stays free: until its end, no release
-- leaves the lock free.
local function is_delayed(queued)
    local is_due = share > 0 and redis.pcall('SET', share_key, share, 'NX', 'PX', keep + 10 * share)
    local is_shared = is_due and is_due.ok ~= nil
    if is_shared then
        queued.notify_first(lock, queue, processes, keep + share)
    elseif keep > 0 then
        queued.notify_next(lock, queue, processes, 1, nil)
    end
    return is_shared or keep > 0
end

local value = redis.pcall('GETRANGE', lock, '0', '255')
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
end

local ours = type(value) == 'string' and string.sub(value, 1, 32) == owner
if ours and keep > 0 then
    redis.call('PEXPIRE', lock, keep)
    -- No longer the owner's, or a late renewal would prolong it.
    redis.pcall('SET', lock, '-' .. value, 'PX', keep)
    local number = string.match(value, '^%x+ (%d+)') or 0
    if number == '0' then
        -- It was taken without a script.
        number = redis.pcall('GETRANGE', token_key, '0', '15')
        number = type(number) == 'string' and tonumber(number) or 0
    end
    redis.pcall('PEXPIRE', token_key, retention(keep + TOKEN_RETENTION, number, clock()))
    if redis.pcall('EXISTS', queue) == 1 then
        local queued = queue_functions()
        -- An owner that releases a sent lock has received it.
        pcall(queued.heard_from, processes, owner)
        pcall(is_delayed, queued)
    end
    redis.pcall('DEL', release_key)
elseif ours then
    redis.call('DEL', lock, release_key)
    if redis.pcall('EXISTS', queue) == 1 then
        local queued = queue_functions()
        pcall(queued.heard_from, processes, owner)
        local _, is_free = pcall(is_delayed, queued)
        if is_free ~= true then
            pcall(queued.grant_next, lock, token_key, queue, processes, nil, false)
        end
    end
else
    -- Has no effect that matters, except an error where writes are refused: a replica that lags
    -- must not reply that the lock is not held.
    redis.call('PEXPIRE', tombstone or release_key, REMEMBERED)
    local queued = redis.call('EXISTS', queue) == 1 and queue_functions()
    if queued then
        -- By pcall: a client that races need not have the rights for a queue.
        pcall(queued.heard_from, processes, owner, queued.channel_of(mine))
    end
    if queued and mine ~= '' then
        local is_first = redis.call('ZRANGE', queue, '0', '0')[1] == mine
        redis.call('ZREM', queue, mine)
        local left = is_first and value == '' and redis.call('EXISTS', lock) == 0 and (left_free(share_key) or 0)
        local holder = type(value) == 'string' and string.match(value, '^%-?(%x+) %d+')
        if left == 0 then
            -- It had to check at the expiry, and has not.
            pcall(queued.grant_next, lock, token_key, queue, processes, nil, true)
        elseif left then
            pcall(queued.notify_first, lock, queue, processes, left)
        elseif is_first and holder and #holder == 32 then
            pcall(queued.notify_next, lock, queue, processes, 0, nil)
        elseif is_first then
            -- A foreign client sends no notification: the next process has to ask, and to watch.
            pcall(queued.notify_next, lock, queue, processes, 0, nil, nil, 0)
        end
    end
end

if uncertain == '1' then
    redis.pcall('SET', tombstone, '', 'PX', REMEMBERED)
end
return ours and 1 or 0
