-- Those who wait in line, and how the lock passes to them. It stands before the scripts by which a lock passes on.
--
-- The line of a lock is a sorted set: who waits, by the number of its arrival. A member is
--     <owner> <channel of its process> <ttl in ms> <number to exceed, or -> <label>
-- Another one, `places`, has the channels of those processes, each with the µs of this clock until which
-- the places of the process last. In it is also, without end and after an `@`, the member to whom the lock was
-- sent last, until it is known that it was heard.
--
-- One function that makes the others, because most scripts find that nobody waits: making all of them takes the
-- server longer than a command does.

local function line()
    local MEMBER = '^(%x+) (%S+) (%d+) (%S+) ?(.*)$'
    local CLAIM_LEASE = 3000 -- in ms: how long a lock that was sent waits for a word of its owner

    local function channel_of(member)
        return (string.match(member, '^%x+ (%S+)'))
    end

    -- Tells the process of the first one in line for how many ms the lock is held, so that it looks then.
    -- Whoever does not hear it is gone. The process that was `sent` the lock knows; whether it is alive is what
    -- others have to find out.
    local function tell_next(lock, queue, places, is_ours, sent)
        local message
        local function tell(channel)
            message = message or table.concat({'next', lock, redis.call('PTTL', lock), whole(clock()), is_ours}, ' ')
            local heard = redis.pcall('PUBLISH', channel, message)
            local is_gone = heard == 0
            if is_gone then
                redis.call('ZREM', places, channel)
            end
            return not is_gone
        end
        while true do
            local member = redis.call('ZRANGE', queue, 0, 0)[1]
            if not member then
                redis.call('DEL', places)
                return
            end
            local channel = channel_of(member)
            if channel and channel == sent then
                for _, other in ipairs(redis.call('ZRANGE', places, -5, -1)) do
                    if other ~= sent and string.sub(other, 1, 1) ~= '@' then
                        tell(other)
                    end
                end
                return
            end
            if channel and tell(channel) then
                return
            end
            redis.call('ZREM', queue, member)
        end
    end

    -- Gives the lock, which is free, to the first one in line whose process is there, and sends it word.
    -- `mine`: who asks; it is not sent to, but answered, and gets the lock from the caller. `lapsed`: nobody let
    -- the lock go, its lease ended. Answers the member that is next, or nil if there is none; and an error.
    --
    -- Nothing is taken out of the line before the lock is given: where a write is refused, the lock stays
    -- free and the line as it is.
    local function serve(lock, fence, queue, places, mine, lapsed)
        local now = clock()
        local sent = redis.call('ZRANGE', places, -1, -1)[1]
        if sent and string.sub(sent, 1, 1) == '@' then
            redis.call('ZREM', places, sent)
            local channel = channel_of(string.sub(sent, 2))
            if lapsed and channel and not (mine and channel == channel_of(mine)) then
                -- Its process was sent the lock and did nothing: it is passed over until it is heard of.
                redis.call('ZREM', places, channel)
            end
        end
        local given = false
        while true do
            local member = redis.call('ZRANGE', queue, 0, 0)[1]
            if not member then
                break
            end
            local owner, channel, ttl, floor, label = string.match(member, MEMBER)
            local lasts = channel and redis.call('ZSCORE', places, channel)
            if lasts and tonumber(lasts) > now then
                if member == mine then
                    redis.call('ZREM', queue, member)
                    return member, nil
                end
                local lease = math.min(tonumber(ttl), CLAIM_LEASE)
                local number, err = give(lock, fence, owner, label, lease, floor, now)
                if err then
                    if given then
                        redis.call('DEL', lock)
                    end
                    return nil, err
                end
                given = true
                local message = {'grant', owner, number, lease, whole(now)}
                local heard = redis.pcall('PUBLISH', channel, table.concat(message, ' '))
                if type(heard) == 'table' then
                    redis.call('DEL', lock)
                    return nil, heard
                end
                if heard > 0 then
                    redis.call('ZREM', queue, member)
                    redis.pcall('ZADD', places, 'inf', '@' .. member)
                    tell_next(lock, queue, places, 1, channel)
                    return member, nil
                end
                redis.call('ZREM', places, channel)
            end
            redis.call('ZREM', queue, member)
        end
        if given then
            redis.call('DEL', lock)
        end
        redis.call('DEL', places)
        return nil, nil
    end

    return {serve = serve, tell_next = tell_next, channel_of = channel_of}
end

