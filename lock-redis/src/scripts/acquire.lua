-- One attempt to get the lock. The same owner again is the same acquisition.
--
-- KEYS  1 the lock   2 its fence   3 the tombstone of this owner
-- ARGV  1 owner   2 ttl in ms   3 the number to exceed, or ''   4 idle time of the fence in ms
--       5 label, or ''
-- Answers {1, number, lease in ms}: granted
--         {0, '', remaining ms, or -1 if it has no end}: held by one of ours
--         {2, '', the same}: held by somebody else, who left no owner id
--         {3, '', 0}: this owner was let go before
--
-- The server refuses writes (memory limit, replica, disk, rights) at the first one of a script and
-- not later, and the first one here is the fence. So a script that fails has not taken the lock, and
-- whoever has the lock has a number that is stored.

local owner, ttl, floor, idle, label = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local LIMIT = 9007199254740992 -- 2^53: beyond, Lua skips numbers

local function string_at(key, what)
    -- No string of ours is longer; others may be as long as they like.
    local value = redis.pcall('GETRANGE', key, 0, 255)
    if type(value) == 'table' and string.find(value.err, 'WRONGTYPE', 1, true) then
        return nil, redis.error_reply('LOCKTYPE ' .. what)
    elseif type(value) == 'table' then
        return nil, value
    end
    if value == '' and redis.call('EXISTS', key) == 0 then
        return nil, nil
    end
    return value, nil
end

-- Until the clock has passed the number, too: then the clock alone is above it.
local function at_least(ms, number)
    local now = redis.call('TIME')
    local ahead = (tonumber(number) - now[1] * 1000000 - now[2]) / 1000
    return string.format('%.0f', ms + math.max(0, ahead))
end

local value, err = string_at(KEYS[1], 'the key of the lock holds something other than a string')
if err then
    return err
end

local lease = ttl
if value then
    local remaining = redis.call('PTTL', KEYS[1])
    if string.sub(value, 1, 32) ~= owner then
        -- A replica that is behind must not say "held". This is refused there, and prolongs at most a
        -- tombstone here.
        local write = redis.pcall('PEXPIRE', KEYS[3], 60000)
        if type(write) == 'table' and string.find(write.err, 'READONLY', 1, true) then
            return write
        end
        local ours = string.match(value, '^%-?(%x+) %d+')
        if ours and #ours == 32 then
            return {0, '', remaining}
        end
        return {2, '', remaining}
    end
    lease = math.max(remaining, ttl)
    local number = string.match(value, '^%x+ (%d+)')
    if number and (floor == '' or tonumber(number) > tonumber(floor)) then
        if remaining < ttl then
            redis.call('PEXPIRE', KEYS[1], ttl)
        end
        redis.call('PEXPIRE', KEYS[2], at_least(lease + idle, number))
        return {1, number, lease}
    end
elseif redis.call('EXISTS', KEYS[3]) == 1 then
    return {3, '', 0}
end

-- A number above every one before, also if the counter was lost or is stale: see Fencing::Seeded.
local last, err = string_at(KEYS[2], 'the fence key of the lock holds something other than a string')
if err then
    return err
end
if last and (#last > 16 or not string.match(last, '^%d+$')) then
    return redis.error_reply('LOCKFENCE the fence key of the lock holds something other than a number')
end
local now = redis.call('TIME')
local number = now[1] * 1000000 + now[2]
if last then
    number = math.max(number, tonumber(last) + 1)
end
if floor ~= '' then
    number = math.max(number, tonumber(floor) + 1)
end
if number >= LIMIT then
    return redis.error_reply('LOCKFENCE the fencing tokens of the lock are used up')
end

number = string.format('%.0f', number)
redis.call('SET', KEYS[2], number, 'PX', at_least(lease + idle, number))
local held = owner .. ' ' .. number
if label ~= '' then
    held = held .. ' ' .. label
end
redis.call('SET', KEYS[1], held, 'PX', lease)
return {1, number, lease}
