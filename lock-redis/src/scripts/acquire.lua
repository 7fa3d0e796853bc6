-- What quick_acquire.lua has left: the lock is held, others stand in line, or something is out of the ordinary.

local arrival, marks, bell = ARGV[5] or '', ARGV[6] == '1', KEYS[6]
local channel, connection = string.match(ARGV[8] or '', '^(.*):(%d%d%d)$')
ttl = tonumber(ttl)
local patience = 2 * ttl + PLACE_LASTS
local now = clock()

local value, err = lock_at(lock)
if err then
    return err
elseif not value and redis.call('EXISTS', tombstone, queue) == 0 then
    local number, err = give(lock, fence, owner, label, ttl, min_token, now)
    return err or {1, number, ttl, now, 0}
end

if tonumber(min_token) and tonumber(min_token) + 1 >= LIMIT then
    -- Nor may it stand in line: it could not be served, and nobody behind it.
    return redis.error_reply('LOCKSPENT there is no fencing token above the one that was asked for')
end

local NEAR = {'1', '15'} -- from the head on to these places is looked for the second process
local line = line()
local waits = channel and true or false
local mine = waits and owner .. ' ' .. channel .. ' ' .. ARGV[2] .. ' ' .. (min_token == '' and '-' or min_token) .. ' ' .. label

local has_come, is_anew = false, false

-- Takes a place in line, the old one if there is one, and has all places of the process last.
local function stand_in_line()
    line.hears(places, owner, channel)
    redis.call('ZREMRANGEBYSCORE', places, '-inf', now)
    local lasts, till = redis.call('ZSCORE', places, channel), whole(now + patience * 1000)
    is_anew = not lasts or string.sub(lasts, -3) ~= connection
    if is_anew or lasts - till < 0 then
        local longer = lasts and lasts - till > 0 and lasts or till
        redis.call('ZADD', places, string.sub(longer, 1, -4) .. connection, channel)
    end
    local place = lasts and 0 or 1
    local stands = redis.call('ZSCORE', queue, mine)
    if stands then
        arrival = whole(stands)
    else
        if arrival == '' then
            local last = redis.call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2]
            arrival = (not last or last - now < 0) and now or whole(last + 1)
        else
            place = place + 4
        end
        redis.call('ZADD', queue, arrival, mine)
        has_come = true
    end
    if redis.call('PTTL', queue) < patience or redis.call('PTTL', places) < patience then
        -- Longer than need be, so that it is not due each time.
        redis.call('PEXPIRE', queue, patience + 60000)
        redis.call('PEXPIRE', places, patience + 60000)
    end
    return place
end

-- The first process in line looks when the lease ends, and the second one too: the first may be the
-- holder's. So does a process that asks on a new connection: the entries before its own may all be
-- stale.
local function is_to_look()
    if is_anew then
        return true
    end
    for _, last in ipairs(NEAR) do
        local first
        for _, member in ipairs(redis.call('ZRANGE', queue, '0', last)) do
            local process = line.channel_of(member)
            if process == channel or (first and process ~= first) then
                return process == channel
            end
            first = process
        end
    end
    return false
end

local function contended(by, remaining, place, looks)
    if waits and (looks or is_to_look()) then
        place = place + 2
    end
    if bell and by == 0 then
        -- To be rung by whoever lets go. If this is refused, it waits for its own next look.
        redis.pcall('SET', bell, '', 'NX', 'PX', IDLE)
    end
    return {by, arrival, remaining, now, place}
end

if not value then
    if redis.call('EXISTS', tombstone) == 1 then
        return {3, '', 0, now, 0}
    end
    local place = waits and stand_in_line() or 0
    local next, err, more = line.serve(lock, fence, queue, places, mine, true)
    if err then
        if has_come then
            -- Whoever is told that nothing was done does not come back for its place.
            redis.pcall('ZREM', queue, mine)
        end
        return err
    elseif more then
        return contended(0, 0, place, true)
    elseif next and next ~= mine then
        return contended(0, redis.call('PTTL', lock), place)
    end
    local number, err = give(lock, fence, owner, label, ttl, min_token, now)
    line.tell_next(lock, queue, places, 1, nil)
    return err or {1, number, ttl, now, 0}
end

local remaining = redis.call('PTTL', lock)
if string.sub(value, 1, 32) ~= owner then
    -- A replica that is behind must not say "held". This is refused there, and prolongs at most a
    -- tombstone here.
    local write = redis.pcall('PEXPIRE', tombstone, REMEMBERED)
    if type(write) == 'table' and string.find(write.err, 'READONLY', 1, true) then
        return write
    end
    if waits and redis.call('EXISTS', tombstone) == 1 then
        return {3, '', 0, now, 0}
    end
    local ours = string.match(value, '^%-?(%x+) %d+')
    local by = ours and #ours == 32 and 0 or 2
    if marks and by == 0 and string.sub(value, -1) ~= ' ' then
        -- Before anything else: who is told that this failed has left nothing. It stays until the lock is let go.
        redis.call('SET', lock, value .. ' ', 'KEEPTTL')
    end
    return contended(by, remaining, waits and stand_in_line() or 0)
end

if waits then
    redis.call('ZREM', places, '@' .. mine)
end
local lease = math.max(remaining, ttl)
local number = string.match(value, '^%x+ (%d+)')
if number and (min_token == '' or tonumber(number) > tonumber(min_token)) then
    if remaining < ttl then
        redis.call('PEXPIRE', lock, ttl)
    end
    redis.call('PEXPIRE', fence, at_least(lease + IDLE, number, now))
    return {1, number, lease, now, 0}
end
local number, err = give(lock, fence, owner, label, lease, min_token, now)
return err or {1, number, lease, now, 0}
