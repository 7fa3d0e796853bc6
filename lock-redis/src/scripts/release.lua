-- Removes all state of an owner, and no state of another one. Grants a released lock to the next
-- waiter.
--
-- KEYS[1]  The lock.
-- KEYS[2]  Its token key.
-- KEYS[3]  Its queue.
-- KEYS[4]  Its processes.
-- KEYS[5]  Its release key.
-- ARGV[1]  The owner id.
--
-- If the release does more than end a hold:
-- KEYS[6]  The tombstone of this owner.
-- ARGV[2]  The rest of a minimum hold in ms, or 0.
-- ARGV[3]  '1' if an attempt may still arrive.
-- ARGV[4]  The queue entry of this owner, or ''.
--
-- If waiters let clients that poll have a part of the time:
-- KEYS[7]  The share key. While it exists, the lock is not left free again.
-- ARGV[5]  For how many ms a release leaves the lock free.
--
-- Replies 1 if this owner held the lock until now, else 0.
--
-- After the release all commands run by pcall: a completed release must not end as an error. At the
-- memory limit the server allows a command that frees memory or only sets an expiry, and after it
-- all other writes of the script. So SET never comes first.

local lock, token_key, queue, processes, release_key, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, keep, uncertain, mine = ARGV[1], tonumber(ARGV[2] or 0), ARGV[3], ARGV[4] or ''
local share, share_key = tonumber(ARGV[5] or 0), KEYS[7]

local value = redis.pcall('GETRANGE', lock, '0', '255')
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
end
local ours = type(value) == 'string' and string.sub(value, 1, 32) == owner
local queued = redis.call('EXISTS', queue) == 1 and queue_functions()

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
    redis.pcall('DEL', release_key)
elseif ours then
    redis.call('DEL', lock, release_key)
end

if ours and queued then
    -- Notifies the next process when it may take the lock: after the rest of a minimum hold, and
    -- after the time for which the lock then stays free for clients that poll. Returns false if
    -- there is neither. The share key lasts ten times as long as the lock stays free: until its
    -- end, no release leaves the lock free.
    local function delay()
        local is_due = share > 0 and redis.pcall('SET', share_key, share, 'NX', 'PX', keep + 10 * share)
        local is_shared = is_due and is_due.ok ~= nil
        if is_shared or keep > 0 then
            -- An owner that releases a sent lock has received it.
            queued.heard_from(processes, owner)
        end
        if is_shared then
            queued.notify_first(lock, queue, processes, keep + share)
        elseif keep > 0 then
            queued.notify_next(lock, queue, processes, 1, nil)
        end
        return is_shared or keep > 0
    end
    local _, is_delayed = pcall(delay)
    if keep == 0 and is_delayed ~= true then
        pcall(queued.grant_next, lock, token_key, queue, processes, nil, false)
    end
elseif not ours then
    -- Has no effect that matters, except an error where writes are refused: a replica that lags
    -- must not reply that the lock is not held.
    redis.call('PEXPIRE', tombstone or release_key, REMEMBERED)
    if queued then
        -- By pcall: a client that races need not have the rights for a queue.
        pcall(queued.heard_from, processes, owner, queued.channel_of(mine))
    end
    if queued and mine ~= '' then
        local is_first = redis.call('ZRANGE', queue, '0', '0')[1] == mine
        redis.call('ZREM', queue, mine)
        local left = is_first and value == '' and redis.call('EXISTS', lock) == 0 and (left_free(share_key) or 0)
        if left == 0 then
            -- It had to check at the expiry, and has not.
            pcall(queued.grant_next, lock, token_key, queue, processes, nil, true)
        elseif left then
            pcall(queued.notify_first, lock, queue, processes, left)
        elseif is_first and type(value) == 'string' and is_ours(value) then
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
