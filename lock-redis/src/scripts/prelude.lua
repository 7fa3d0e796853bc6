-- Numbers and functions that the scripts share. This precedes each of them but the smallest.

local LIMIT = 9007199254740992 -- 2^53: beyond, Lua skips numbers
-- The backend counts on these two.
local TOKEN_RETENTION = 600000 -- in ms: how long a token key outlives its lock
local QUEUE_ENTRY_GRACE = 5000 -- in ms: how long an entry lasts besides two leases of its process
-- In ms: how long a released claim is remembered, so that its late attempt is refused. No attempt
-- stays on its way for longer.
local REMEMBERED = 60000

-- Times and tokens are strings of digits: Lua takes longer to format a number than the server takes
-- for a command. For the same reason, commands get '0' and not 0.

-- Returns the server's time in µs.
local function clock()
    local now = redis.call('TIME')
    return now[1] .. string.sub('00000' .. now[2], -6)
end

local function integer(number)
    return string.format('%.0f', number)
end

-- Returns a retention that also lasts until the clock has passed the number: then the clock alone
-- exceeds it.
local function retention(ms, number, now)
    if number == now then
        return ms
    end
    return integer(ms + math.max(0, (number - now) / 1000))
end

local function string_at(key, what)
    -- No value of this library is longer; foreign ones may have any length.
    local value = redis.pcall('GETRANGE', key, '0', '255')
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

-- Returns whether a client of this library wrote the value of a lock.
local function is_ours(value)
    local owner, number, behind = string.match(value, '^%-?([%da-f]+) (%d+)(.?)')
    return owner and #owner == 32 and #number <= 16 and (behind == '' or behind == ' ') and #value < 256
end

-- Returns the value of a lock's key, nil if the lock is free, or an error. A key of another type
-- that expires is the lock of a foreign client: its value is ''.
local function lock_at(lock)
    local value, err = string_at(lock, 'the key of the lock holds something other than a string, without an expiry')
    if err and string.find(err.err, 'LOCKTYPE', 1, true) and redis.call('PTTL', lock) >= 0 then
        return '', nil
    end
    return value, err
end

-- Returns for how many more ms the free lock is left to clients that poll, or nil. The share key
-- has that time and lasts ten times as long, or longer after a step of the server's clock. The
-- first call after that time makes the key fit the time that it really was, up to a second more,
-- and marks it. `is_taken`: a foreign client has the lock, and its time does not count.
local function left_free(share_key, is_taken)
    local value = share_key and redis.pcall('GETRANGE', share_key, '0', '15')
    local share = type(value) == 'string' and tonumber(value)
    local left = share and redis.call('PTTL', share_key) - 9 * share
    local is_marked = share and string.sub(value, -1) == ' '
    if left and left <= 0 and not is_marked then
        local free = math.min(-left, 1000) + share
        redis.pcall('SET', share_key, integer(free) .. ' ', 'PX', integer(9 * free))
    elseif left and left > 0 and left <= share then
        if is_taken and not is_marked then
            redis.pcall('SET', share_key, value .. ' ', 'KEEPTTL')
        end
        return left
    end
end

-- Grants the lock with a token above all earlier ones, even if the token key was lost or is stale:
-- see Fencing::Seeded. The token key is written first, so each holder's token is stored.
local function grant(lock, token_key, owner, label, lease, min_token, now)
    local last, err = string_at(token_key, 'the token key of the lock holds something other than a string')
    if err then
        return nil, err
    end
    if last and not string.find(last, '^%d+$') then
        return nil, redis.error_reply('LOCKTOKEN the token key of the lock holds something other than a number')
    end
    local number, above = now, tonumber(min_token)
    if above or (last and (#last ~= #now or now <= last)) then
        number = math.max(now + 0, (last or 0) + 1, (above or 0) + 1)
        if number >= LIMIT then
            return nil, redis.error_reply('LOCKSPENT the fencing tokens of the lock are used up: its token key, or who asks, is at the last one')
        end
        number = integer(number)
    end
    redis.call('SET', token_key, number, 'PX', retention(lease + TOKEN_RETENTION, number, now))
    local held = owner .. ' ' .. number
    if label ~= '' then
        held = held .. ' ' .. label
    end
    redis.call('SET', lock, held, 'PX', lease)
    return number, nil
end

