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
--
-- Most releases end in this file, with or without waiters: see quick_acquire.lua. For waiters it
-- does the same as `grant_next` in queue.lua, in the usual case.

local lock, token_key, queue, processes, release_key, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

local CLAIM_LEASE, STAYS = '3000', '603000' -- in ms: see queue.lua; the token key's retention

local is_plain = not ARGV[2] and redis.pcall('GETRANGE', lock, '0', '31') == owner
if is_plain and redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', lock, release_key)
    return 1
end

local is_released = false -- here, and no waiter has it yet
local sent_to -- the process that was sent the lock here, if others are still to be notified
if is_plain then
    -- All reads come before the release. An unusual case is left to release.lua.
    local heads = redis.pcall('ZRANGE', queue, '0', '1', 'WITHSCORES')
    local head, arrival, behind = heads[1], heads[2], heads[3]
    local channel, ttl, label = string.match(head or '', '^(%S+) (%d+) %- ?(.*)$', 34)
    local lasts = channel and redis.pcall('ZSCORE', processes, channel)
    local other = behind and string.match(behind, '^%S+', 34)
    local stays = other and other ~= channel and redis.pcall('ZSCORE', processes, other)
    local last = lasts and redis.pcall('GETRANGE', token_key, '0', '16')
    local now = last and redis.pcall('TIME')
    now = now and now[1] and now[1] .. string.sub('00000' .. now[2], -6)
    if now and #lasts == #now and #last == #now and last < now and now < lasts and #arrival == #now and arrival < now
        and string.find(last, '^%d+$') then
        local known = redis.pcall('ZRANGE', processes, '-3', '-1')
        local unconfirmed = string.find(known[#known] or '', '@', 1, true) == 1 and known[#known]
        local next, lease = string.sub(head, 1, 32), ttl - CLAIM_LEASE < 0 and ttl or CLAIM_LEASE
        local held = next .. ' ' .. now
        redis.call('DEL', lock, release_key)
        is_released = true
        local stored = redis.pcall('SET', token_key, now, 'PX', STAYS).ok
            and redis.pcall('SET', lock, label == '' and held or held .. ' ' .. label, 'PX', lease).ok
        -- Before the grant: the server first writes to the client to which it sent the last
        -- message.
        local told = stored and type(stays) == 'string'
            and redis.pcall('PUBLISH', other .. ':' .. string.sub(stays, -3), 'next ' .. lease .. ' ' .. now .. ' 1 ' .. lock)
        local heard = stored
            and redis.pcall('PUBLISH', channel .. ':' .. string.sub(lasts, -3),
                'grant ' .. next .. ' ' .. now .. ' ' .. lease .. ' ' .. now .. ' ' .. now .. ' ' .. lock)
        if type(heard) == 'number' and heard > 0 then
            redis.pcall('ZREM', queue, head)
            if not behind then
                redis.pcall('DEL', processes)
                return 1
            elseif unconfirmed then
                redis.pcall('ZREM', processes, unconfirmed)
            end
            redis.pcall('ZADD', processes, 'inf', '@' .. head)
            local is_alone = other == channel and #known == (unconfirmed and 2 or 1)
            if is_alone or (told and told ~= 0) then
                return 1
            end
            sent_to = channel
        end
    end
end

