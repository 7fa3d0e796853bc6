-- Removes all state of an owner, and no state of another one. A released lock is the next waiter's
-- when this ends.
--
-- KEYS  1 the lock   2 its token key   3 its queue   4 its processes   5 its release key
-- ARGV  1 owner
-- If the release does more than end a hold:
-- KEYS  6 the tombstone of this owner
-- ARGV  2 keep others out for so many ms, or 0   3 '1' if an attempt may still arrive
--       4 the queue entry of this owner, or ''
-- Answers 1: it held the lock until now   0: it did not
--
-- After the release all commands run by pcall: a completed release must not end as an error. A command that frees
-- memory or only sets an expiry is allowed at the memory limit, and after it so is every other write of the
-- script: that is why SET never comes first.
--
-- Nearly every release ends in this file, with or without waiters: see quick_acquire.lua. For waiters it does
-- the same as `grant_next` in queue.lua, in the usual case.

local lock, token_key, queue, processes, release_key, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

local CLAIM_LEASE, STAYS = '3000', '603000' -- in ms: the claim lease of a sent lock, and the retention of its token key then

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
        -- Before the grant: the server writes first to whom it has last said something.
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

