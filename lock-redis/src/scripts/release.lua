-- Removes every trace of an owner, and nothing of anybody else's. A lock that was let go is the next
-- waiter's when this ends.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 its places   5 the tombstone of this owner
-- ARGV  1 owner   2 keep others out for so many ms, or 0   3 '1' if an attempt may still arrive
--       4 how long the tombstone stays in ms   5 idle time of the fence in ms
--       6 what stands for this owner in the queue, or ''
-- Answers 1: it held the lock until now   0: it did not
--
-- Touching the fence wakes those who wait without a place. Everything after the lock was let go is by pcall: a
-- release that was done must not end as an error. What frees memory or only sets an expiry is allowed at
-- the memory limit, and after it so is every other write of the script: that is why SET never comes first.

local owner, keep, uncertain = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local stays, idle, mine = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local lock, fence, queue, places, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local value = redis.pcall('GETRANGE', lock, 0, 255)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
end

local function touch_fence(ms)
    local number = string.match(value, '^%x+ (%d+)') or 0
    redis.pcall('PEXPIRE', fence, at_least(ms + idle, number, clock()))
end

local ours = type(value) == 'string' and string.sub(value, 1, 32) == owner
if ours and keep > 0 then
    redis.call('PEXPIRE', lock, keep)
    -- No longer the owner's, or a renewal that is late would prolong it.
    redis.pcall('SET', lock, '-' .. value, 'PX', keep)
    touch_fence(keep)
    if redis.pcall('EXISTS', queue) == 1 then
        -- Whoever was sent the lock and lets it go has heard of it.
        local sent = redis.pcall('ZRANGE', places, -1, -1)[1]
        if sent and string.sub(sent, 1, 33) == '@' .. owner then
            redis.pcall('ZREM', places, sent)
        end
        pcall(line().tell_next, lock, queue, places, 1, nil)
    end
elseif ours then
    redis.call('DEL', lock)
    if redis.pcall('EXISTS', queue) == 1 then
        pcall(line().serve, lock, fence, queue, places, idle, nil, false)
    end
    touch_fence(0)
else
    -- Does nothing, but where writes are refused: a replica that is behind must not say "not held".
    redis.call('PEXPIRE', tombstone, stays)
    if mine ~= '' then
        local is_first = redis.call('ZRANGE', queue, 0, 0)[1] == mine
        redis.call('ZREM', queue, mine)
        if is_first and value == '' and redis.call('EXISTS', lock) == 0 then
            -- It was to look, and has not.
            pcall(line().serve, lock, fence, queue, places, idle, nil, true)
        elseif is_first then
            pcall(line().tell_next, lock, queue, places, 0, nil)
        end
    end
end

if uncertain == '1' then
    redis.pcall('SET', tombstone, '', 'PX', stays)
end
return ours and 1 or 0
