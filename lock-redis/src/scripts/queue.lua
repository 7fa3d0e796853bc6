-- The queue, and how its waiters get the lock. This precedes the scripts that may grant the lock to
-- a waiter.
--
-- The queue of a lock is a sorted set: the waiters, by their arrival. A member is
--     <owner> <channel of its process> <ttl in ms> <number to exceed, or -> <label>
-- Another one, `processes`, has the channels of those processes, each with the µs of this clock
-- until which the entries of the process last. The last three digits of these are the number of the
-- connection on which the process last asked for the lock. Messages go to its channel with that
-- number: a process that has not asked since the server started listens to another channel, or to
-- none. `processes` also has, without expiry and after an `@`, the member to which the lock was
-- sent last, until a request of its owner or process arrives.
--
-- One function creates the others, because most scripts find no waiter: creating all of them takes
-- the server longer than a command does.

local function queue_functions()
    local BEHIND_OWNER = 34 -- where the channel begins
    local CLAIM_LEASE = '3000' -- in ms: how long a sent lock waits for a request of its owner
    local CHECK_COST = 5 -- of asking whether a process listens, where removing an entry costs 1
    local GRANT_BUDGET = 200 -- the budget that a sweep leaves for the next grant
    local BATCH = '100'

    -- The budget of one script for dead processes: the server does nothing else meanwhile. A
    -- thousand take a few ms. The next request continues.
    local budget = 1000
    local unreachable = {} -- channels without a listener

    local function channel_of(member)
        return string.match(member, '^%S+', BEHIND_OWNER)
    end

    -- Returns the member to which the lock was sent last, if no request of it has arrived since.
    local function unconfirmed(processes)
        local last = redis.call('ZRANGE', processes, '-1', '-1')[1]
        return last and string.sub(last, 1, 1) == '@' and string.sub(last, 2)
    end

    -- Notes that a request of an owner has arrived, and so of its process, if that is known.
    local function heard_from(processes, owner, channel)
        local sent = unconfirmed(processes)
        if sent and (string.sub(sent, 1, 32) == owner or channel_of(sent) == channel) then
            redis.call('ZREM', processes, '@' .. sent)
        end
    end

    -- Returns the first entry whose process is alive, and the entry behind it. Removes all entries
    -- before it. Returns nil if there is none, or if the budget ends before.
    local function first(queue, is_gone)
        local last = '1'
        while budget > 0 do
            local members, gone = redis.call('ZRANGE', queue, '0', last), 0
            for i, member in ipairs(members) do
                if not is_gone(channel_of(member)) then
                    break
                end
                gone = i
            end
            if gone > 0 then
                redis.call('ZREM', queue, unpack(members, 1, gone))
                budget = budget - gone
            end
            if gone <= tonumber(last) then
                local behind = members[gone + 2] or (gone > 0 and redis.call('ZRANGE', queue, '1', '1')[1])
                return members[gone + 1], behind or nil
            end
            last = BATCH
        end
        return nil
    end

    -- Sends a message to a process. Returns false if it does not listen; then its entries expire.
    local function notify(channel, message, processes)
        local lasts = redis.call('ZSCORE', processes, channel)
        local heard = lasts and redis.pcall('PUBLISH', channel .. ':' .. string.sub(lasts, -3), message) or 0
        if heard == 0 then
            redis.call('ZREM', processes, channel)
            unreachable[channel] = true
        end
        return heard ~= 0
    end

    -- Returns the message that makes a process check after so many ms.
    local function check_message(lock, remaining, now, is_ours)
        return 'next ' .. remaining .. ' ' .. now .. ' ' .. is_ours .. ' ' .. lock
    end

    -- Sends a message to `most` of the processes whose entries last longest. A thousand are tried:
    -- those that do not listen are removed.
    local function notify_others(message, processes, sent, most)
        local passed = 0
        for _ = 1, 10 do
            local channels = redis.call('ZRANGE', processes, -passed - BATCH, -passed - 1)
            for i = #channels, 1, -1 do
                local channel = channels[i]
                local is_other = channel ~= sent and string.sub(channel, 1, 1) ~= '@'
                if most > 0 and is_other and notify(channel, message, processes) then
                    most = most - 1
                end
                passed = passed + (unreachable[channel] and 0 or 1)
            end
            if most == 0 or #channels - BATCH < 0 then
                return
            end
        end
    end

    local function is_unreachable(channel)
        return not channel or unreachable[channel]
    end

    -- Notifies the process of the queue's head for how many ms the lock is held, so that it checks
    -- then. A process that does not listen is gone. The process that was `sent` the lock is
    -- notified already, and others have to find out whether it is alive. The caller may pass the
    -- head if it knows it, and the remaining ms `since` a time.
    local function notify_next(lock, queue, processes, is_ours, sent, member, remaining, since)
        local message
        while budget > 0 do
            local channel = member and channel_of(member)
            if is_unreachable(channel) then
                member = first(queue, is_unreachable)
                channel = member and channel_of(member)
            end
            if not member and budget > 0 then
                redis.call('DEL', processes)
                return
            end
            message = message
                or check_message(lock, remaining or redis.call('PTTL', lock), since or clock(), is_ours)
            if not member or channel == sent then
                notify_others(message, processes, sent, 4)
                return
            end
            if notify(channel, message, processes) then
                return
            end
            budget = budget - 1
        end
    end

    -- Notifies the process of the queue's head that the lock stays free for so many ms, so that it
    -- checks then. The lock has no lease whose end others wait for, so the processes of the next
    -- entries check as well. One without an entry would ignore the message.
    local function notify_first(lock, queue, processes, ms)
        local now = clock()
        notify_next(lock, queue, processes, 1, nil, nil, ms, now)
        local members = redis.call('ZRANGE', queue, '0', BATCH)
        local head = members[1] and channel_of(members[1])
        local message, told, most = check_message(lock, ms, now, 1), {[head or ''] = true}, 4
        for _, member in ipairs(members) do
            local channel = channel_of(member)
            if most > 0 and channel and not told[channel] then
                told[channel] = true
                most = most - (notify(channel, message, processes) and 1 or 0)
            end
        end
        if #members - BATCH > 0 then
            notify_others(message, processes, head, most)
        end
    end

    -- Grants the free lock to the first queued owner whose process listens, and publishes the
    -- grant. `mine`: the calling owner. It receives no message, because the script's reply tells
    -- it. `expired`: the lock became free by the end of a lease, not by a release. Returns the next
    -- owner or nil; an error or nil; and true if another client has to go on, because the lock is
    -- free and the queue is not empty.
    --
    -- Only entries of dead processes leave the queue before the lock is granted. If a write is
    -- refused, the lock stays free and the queue unchanged. A former primary may have dated entries
    -- ahead of this server's clock: then the grant carries the latest arrival, and a later claim
    -- arrives after that.
    local function grant_next(lock, token_key, queue, processes, mine, expired)
        local now = clock()
        local sent = unconfirmed(processes)
        if sent then
            redis.call('ZREM', processes, '@' .. sent)
            local channel = channel_of(sent)
            if expired and channel then
                -- Its process was sent the lock and did nothing: it is passed over until it is
                -- heard of.
                redis.call('ZREM', processes, channel)
            end
        end
        local lasts = {} -- till when the entries of a process last, or false if it is gone
        local asks = false -- by empty messages whether processes listen, once one did not
        local function is_gone(channel)
            if channel and lasts[channel] == nil then
                local till = redis.call('ZSCORE', processes, channel)
                lasts[channel] = till and till - now > 0 and not (asks and not notify(channel, '', processes)) and till
                budget = budget - CHECK_COST
            end
            return not channel or not lasts[channel]
        end
        local member, behind = first(queue, is_gone)
        while member and member ~= mine do
            local owner = string.sub(member, 1, 32)
            local channel, ttl, min_token, label =
                string.match(member, '^(%S+) (%d+) (%S+) ?(.*)$', BEHIND_OWNER)
            local lease = ttl - CLAIM_LEASE < 0 and ttl or CLAIM_LEASE
            local number, err = grant(lock, token_key, owner, label, lease, min_token, now)
            if err then
                return nil, err
            end
            local last = redis.call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2]
            if last - now <= 0 then
                last = now
            end
            local other, is_told = behind and channel_of(behind), false
            if other and other ~= channel then
                -- Before the grant: the server first writes to the client of the last message.
                local is_done, is_heard = pcall(notify, other, check_message(lock, lease, now, 1), processes)
                is_told = is_done and is_heard
            end
            local message = 'grant ' .. owner .. ' ' .. number .. ' ' .. lease .. ' ' .. now .. ' ' .. last .. ' ' .. lock
            local heard = redis.pcall('PUBLISH', channel .. ':' .. string.sub(lasts[channel], -3), message)
            if type(heard) == 'table' then
                redis.call('DEL', lock)
                return nil, heard
            elseif heard > 0 then
                redis.call('ZREM', queue, member)
                if behind then
                    redis.pcall('ZADD', processes, 'inf', '@' .. member)
                else
                    redis.call('DEL', processes)
                end
                if behind and not is_told then
                    notify_next(lock, queue, processes, 1, channel, behind, lease, now)
                end
                return member, nil
            end
            redis.call('DEL', lock)
            redis.call('ZREM', processes, channel)
            lasts[channel], asks = false, true
            member, behind = first(queue, is_gone)
        end
        if member then
            redis.call('ZREM', queue, member)
            return member, nil
        elseif budget > 0 then
            redis.call('DEL', processes)
            return nil, nil
        end
        notify_others(check_message(lock, 0, now, 1), processes, nil, 4)
        return nil, nil, true
    end

    -- Removes the entries of a process that arrived by a point in time, except those of `known`
    -- owners.
    local function sweep(queue, process, arrived_by, known)
        local from = 0
        while budget > GRANT_BUDGET do
            local entries, stale = redis.call('ZRANGE', queue, from, from + BATCH - 1, 'WITHSCORES'), {}
            for i = 1, #entries, 2 do
                local member, arrival = entries[i], entries[i + 1]
                local is_stale = channel_of(member) == process and not known[string.sub(member, 1, 32)]
                if is_stale and arrival - arrived_by <= 0 then
                    stale[#stale + 1] = member
                end
            end
            if #stale > 0 then
                redis.call('ZREM', queue, unpack(stale))
            end
            budget = budget - #entries / 2
            if #entries < 2 * BATCH then
                return
            end
            from = from + BATCH - #stale
        end
    end

    return {grant_next = grant_next, notify_next = notify_next, notify_first = notify_first, heard_from = heard_from, sweep = sweep, channel_of = channel_of}
end

