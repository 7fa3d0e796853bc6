-- One attempt to get the lock. The same owner again is the same acquisition.
--
-- KEYS[1]  The lock.
-- KEYS[2]  Its token key.
-- KEYS[3]  Its queue.
-- KEYS[4]  Its processes.
-- KEYS[5]  The tombstone of this owner.
-- KEYS[6]  The release key, if the claim waits without a queue entry.
-- KEYS[7]  The share key, if waiters let clients that poll have a part of the time. Then KEYS[6] is
--          the same unless the claim waits without a queue entry.
--
-- Arguments that are empty at the end may be missing.
-- ARGV[1]  The owner id.
-- ARGV[2]  The ttl in ms.
-- ARGV[3]  The label, or ''.
-- ARGV[4]  The number of its arrival, or ''.
-- ARGV[5]  The minimum token, or ''.
-- ARGV[6]  If the claim queues: the channel of its process, with the digits of the connection.
--
-- Replies:
--   number                                   Granted for the ttl, with that token.
--   {1, number, lease in ms, now, 0}         Granted.
--   {0, arrival or '', remaining, now, flags}  Held by a client of this library.
--   {2, the same}                            Held by a foreign client, which left no owner id.
--   {3, '', 0, now, 0}                       This owner was released before.
-- `remaining` is in ms, or -1 without expiry. `now` is the server's time in µs. `flags` is a sum:
--   1  The server had forgotten this process.
--   2  The claim is first or second in the queue.
--   4  Its queue entry was missing.
--
-- The server refuses writes (memory limit, replica, disk, rights) at the first write of a script,
-- and not later. Without waiters, that is the token key here: a script that fails has not taken the
-- lock.

local lock, token_key, queue, processes, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, ttl, label, min_token = ARGV[1], ARGV[2], ARGV[3] or '', ARGV[5] or ''

if redis.call('EXISTS', lock, queue, tombstone) == 0 then
    -- Most attempts end here. The short reply is for them: the token is the server's time, unless
    -- the claim has a minimum token.
    local now = clock()
    local number, err = grant(lock, token_key, owner, label, ttl, min_token, now)
    return err or ((number == now or min_token ~= '') and number) or {1, number, ttl, now, 0}
end

local arrival, release_key, share_key = ARGV[4] or '', KEYS[6], KEYS[7]
if release_key == share_key then
    release_key = nil
end
local channel, connection = string.match(ARGV[6] or '', '^(.*):(%d%d%d)$')
ttl = tonumber(ttl)
local entry_ttl = 2 * ttl + QUEUE_ENTRY_GRACE
local now = clock()

local value, err = lock_at(lock)
if err then
    return err
elseif value and string.find(value .. ' ', '^%x+ 0 ') then
    -- An attempt without a script took the lock. It was late, or has overtaken the queue's head.
    local by = string.sub(value, 1, 32)
    local is_late = redis.call('EXISTS', string.sub(tombstone, 1, -33) .. by) == 1
    local is_queued = by == owner and redis.call('EXISTS', queue) == 1
    local head = is_queued and redis.call('ZRANGE', queue, '0', '0', 'WITHSCORES')[2]
    -- Two ms for rounding.
    local taken = head and now - (ttl - redis.call('PTTL', lock) - 2) * 1000
    if is_late or (head and head - taken <= 0) then
        redis.call('DEL', lock)
        value = nil
    end
end
if not value and redis.call('EXISTS', tombstone, queue) == 0 then
    local number, err = grant(lock, token_key, owner, label, ttl, min_token, now)
    return err or {1, number, ttl, now, 0}
end

if tonumber(min_token) and tonumber(min_token) + 1 >= LIMIT then
    -- Nor may it queue: neither this claim nor those behind it could be served.
    return redis.error_reply('LOCKSPENT there is no fencing token above the one that was asked for')
end

local LAST_NUMBERS = 1000 -- before the limit: no attempt without a script uses them
local NEAR = {'1', '15'} -- the second process is searched from the head on, up to these positions
local queued = queue_functions()
local waits = channel and true or false
local mine = waits and owner .. ' ' .. channel .. ' ' .. ARGV[2] .. ' ' .. (min_token == '' and '-' or min_token) .. ' ' .. label

local was_added, is_new_process = false, false

-- Raises the token key, if it has a number. An attempt without a script does not look at the queue:
-- it is a grant only if the key still had the token of a hold that began without a queue.
local function raise(token_key)
    local last = redis.pcall('GETRANGE', token_key, '0', '255')
    if type(last) == 'string' and string.find(last, '^%d+$') and LIMIT - last > LAST_NUMBERS then
        redis.call('SET', token_key, integer(last + 1), 'XX', 'KEEPTTL')
    end
end

-- Queues the claim, at its old position if it had one, and prolongs all entries of the process.
local function enqueue()
    queued.heard_from(processes, owner, channel)
    redis.call('ZREMRANGEBYSCORE', processes, '-inf', now)
    local lasts, till = redis.call('ZSCORE', processes, channel), integer(now + entry_ttl * 1000)
    is_new_process = not lasts or string.sub(lasts, -3) ~= connection
    if is_new_process or lasts - till < 0 then
        local longer = lasts and lasts - till > 0 and lasts or till
        redis.call('ZADD', processes, string.sub(longer, 1, -4) .. connection, channel)
    end
    local flags = lasts and 0 or 1
    local stands = redis.call('ZSCORE', queue, mine)
    if stands then
        arrival = integer(stands)
    else
        if arrival == '' then
            local last = redis.call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2]
            arrival = (not last or last - now < 0) and now or integer(last + 1)
        else
            flags = flags + 4
        end
        raise(token_key)
        redis.call('ZADD', queue, arrival, mine)
        was_added = true
    end
    if redis.call('PTTL', queue) < entry_ttl or redis.call('PTTL', processes) < entry_ttl then
        -- Longer than necessary, so that it is not due each time.
        redis.call('PEXPIRE', queue, entry_ttl + 60000)
        redis.call('PEXPIRE', processes, entry_ttl + 60000)
    end
    return flags
end

-- Returns true if the process has to check when the lease expires: it is one of the first two in
-- the queue (the first may be the holder's), or asks on a new connection, when all entries before
-- its own may be stale.
local function must_check()
    if is_new_process then
        return true
    end
    for _, last in ipairs(NEAR) do
        local first
        for _, member in ipairs(redis.call('ZRANGE', queue, '0', last)) do
            local process = queued.channel_of(member)
            if process == channel or (first and process ~= first) then
                return process == channel
            end
            first = process
        end
    end
    return false
end

local function contended(by, remaining, flags, checks)
    if waits and (checks or must_check()) then
        flags = flags + 2
    end
    if release_key and by == 0 then
        -- The release deletes it, which wakes the waiter. If this write is refused, the waiter
        -- polls.
        redis.pcall('SET', release_key, '', 'NX', 'PX', TOKEN_RETENTION)
    end
    return {by, arrival, remaining, now, flags}
end

if not value then
    if redis.call('EXISTS', tombstone) == 1 then
        return {3, '', 0, now, 0}
    end
    -- While the lock is left free, a replica refuses the write, as below. Each process that asks
    -- checks at the end, because those that were notified may be dead by then.
    local flags, left = waits and enqueue() or 0, left_free(share_key)
    if left then
        redis.call('PEXPIRE', tombstone, REMEMBERED)
        return contended(0, left, flags, true)
    end
    local next, err, more = queued.grant_next(lock, token_key, queue, processes, mine, true)
    if err then
        if was_added then
            -- After an error without an effect, the client does not come back for its entry.
            redis.pcall('ZREM', queue, mine)
        end
        return err
    elseif more then
        return contended(0, 0, flags, true)
    elseif next and next ~= mine then
        return contended(0, redis.call('PTTL', lock), flags)
    end
    local number, err = grant(lock, token_key, owner, label, ttl, min_token, now)
    queued.notify_next(lock, queue, processes, 1, nil)
    return err or {1, number, ttl, now, 0}
end

local remaining = redis.call('PTTL', lock)
if string.sub(value, 1, 32) ~= owner then
    -- A replica that lags must not reply that the lock is held. It refuses this command, which
    -- otherwise prolongs at most a tombstone.
    local write = redis.pcall('PEXPIRE', tombstone, REMEMBERED)
    if type(write) == 'table' and string.find(write.err, 'READONLY', 1, true) then
        return write
    end
    if waits and redis.call('EXISTS', tombstone) == 1 then
        return {3, '', 0, now, 0}
    end
    local by = is_ours(value) and 0 or 2
    if (waits or release_key) and by == 0 and string.sub(value, -1) ~= ' ' then
        -- Marks the lock, until its release. The holder may release it by deleting its value, and
        -- does not check for waiters. Before any other write: an error leaves nothing behind. If
        -- this write is refused, a waiter that is not queued polls.
        local call = waits and redis.call or redis.pcall
        call('SET', lock, value .. ' ', 'KEEPTTL')
    end
    if by == 2 then
        left_free(share_key, true)
    end
    return contended(by, remaining, waits and enqueue() or 0)
end

if waits then
    redis.call('ZREM', processes, '@' .. mine)
end
local lease = math.max(remaining, ttl)
local number = string.match(value, '^%x+ (%d+)')
if number ~= '0' and number and (min_token == '' or tonumber(number) > tonumber(min_token)) then
    if remaining < ttl then
        redis.call('PEXPIRE', lock, ttl)
    end
    redis.call('PEXPIRE', token_key, retention(lease + TOKEN_RETENTION, number, now))
    return {1, number, lease, now, 0}
end
local granted, err = grant(lock, token_key, owner, label, lease, min_token, now)
if err and number == '0' then
    -- After an error without an effect, the client does not come back for it.
    redis.pcall('DEL', lock)
end
return err or {1, granted, lease, now, 0}
