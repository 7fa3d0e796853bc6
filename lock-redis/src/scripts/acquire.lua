-- One attempt to get the lock. The same owner again is the same acquisition.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 its places   5 the tombstone of this owner
-- ARGV  1 owner   2 ttl in ms   3 the number to exceed, or ''   4 idle time of the fence in ms
--       5 label, or ''   6 the channel of its process, or '' if it does not wait in line
--       7 the number of its arrival, or '' if it was not told one   8 how long its place lasts in ms
-- Answers {1, number, lease in ms, now, 0}: granted
--         {0, arrival or '', remaining ms, or -1 if it has no end, now, place}: held by one of ours
--         {2, the same}: held by somebody else, who left no owner id
--         {3, '', 0, now, 0}: this owner was let go before
-- where now is the server's time in µs, and place the sum of 1 if the server had forgotten this process, 2 if
-- it is one of the first two in line, and 4 if this owner had a place and it was gone.
--
-- The server refuses writes (memory limit, replica, disk, rights) at the first one of a script and
-- not later. Where nobody waits, the first one here is the fence: a script that fails has not taken the lock.

local owner, ttl, floor, idle = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local label, channel, arrival, patience = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local lock, fence, queue, places, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = clock()

local value, err = string_at(lock, 'the key of the lock holds something other than a string')
if err then
    return err
elseif not value and redis.call('EXISTS', tombstone, queue) == 0 then
    local number, err = give(lock, fence, owner, label, ttl, floor, idle, now)
    return err or {1, number, ttl, now, 0}
end

if tonumber(floor) and tonumber(floor) + 1 >= LIMIT then
    -- Nor may it stand in line: it could not be served, and nobody behind it.
    return redis.error_reply('LOCKFENCE there is no fencing token above the one that was asked for')
end

local NEAR = 16 -- so many from the head on are looked through for the second process
local line = line()
local waits = channel ~= ''
local mine = waits and table.concat({owner, channel, ARGV[2], floor == '' and '-' or floor, label}, ' ')

-- Takes a place in line, the old one if there is one, and has all places of the process last.
local function stand_in_line()
    redis.call('ZREMRANGEBYSCORE', places, '-inf', whole(now))
    local lasts, till = redis.call('ZSCORE', places, channel), now + patience * 1000
    if not lasts or tonumber(lasts) < till then
        redis.call('ZADD', places, whole(till), channel)
    end
    local place = lasts and 0 or 1
    local stands = redis.call('ZSCORE', queue, mine)
    if stands then
        arrival = whole(tonumber(stands))
    else
        if arrival == '' then
            local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
            arrival = whole(math.max(now, last and tonumber(last) + 1 or 0))
        else
            place = place + 4
        end
        redis.call('ZADD', queue, arrival, mine)
    end
    if redis.call('PTTL', queue) < patience or redis.call('PTTL', places) < patience then
        -- Longer than need be, so that it is not due each time.
        redis.call('PEXPIRE', queue, patience + 60000)
        redis.call('PEXPIRE', places, patience + 60000)
    end
    return place
end

-- The first process in line looks when the lease ends, and the second one too: the first may be the holder's.
local function is_to_look()
    local first
    for _, member in ipairs(redis.call('ZRANGE', queue, 0, NEAR - 1)) do
        local process = line.channel_of(member)
        if process == channel or (first and process ~= first) then
            return process == channel
        end
        first = process
    end
    return false
end

local function contended(by, remaining, place)
    if waits and is_to_look() then
        place = place + 2
    end
    return {by, arrival, remaining, now, place}
end

if not value then
    if redis.call('EXISTS', tombstone) == 1 then
        return {3, '', 0, now, 0}
    end
    local place = waits and stand_in_line() or 0
    local next, err = line.serve(lock, fence, queue, places, idle, mine, true)
    if err then
        return err
    elseif next and next ~= mine then
        return contended(0, redis.call('PTTL', lock), place)
    end
    local number, err = give(lock, fence, owner, label, ttl, floor, idle, now)
    line.tell_next(lock, queue, places, 1, nil)
    return err or {1, number, ttl, now, 0}
end

local remaining = redis.call('PTTL', lock)
if string.sub(value, 1, 32) ~= owner then
    -- A replica that is behind must not say "held". This is refused there, and prolongs at most a
    -- tombstone here.
    local write = redis.pcall('PEXPIRE', tombstone, 60000)
    if type(write) == 'table' and string.find(write.err, 'READONLY', 1, true) then
        return write
    end
    if waits and redis.call('EXISTS', tombstone) == 1 then
        return {3, '', 0, now, 0}
    end
    local ours = string.match(value, '^%-?(%x+) %d+')
    local by = ours and #ours == 32 and 0 or 2
    return contended(by, remaining, waits and stand_in_line() or 0)
end

if waits then
    redis.call('ZREM', places, '@' .. mine)
end
local lease = math.max(remaining, ttl)
local number = string.match(value, '^%x+ (%d+)')
if number and (floor == '' or tonumber(number) > tonumber(floor)) then
    if remaining < ttl then
        redis.call('PEXPIRE', lock, ttl)
    end
    redis.call('PEXPIRE', fence, at_least(lease + idle, number, now))
    return {1, number, lease, now, 0}
end
local number, err = give(lock, fence, owner, label, lease, floor, idle, now)
return err or {1, number, lease, now, 0}
