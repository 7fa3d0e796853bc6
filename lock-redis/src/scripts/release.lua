-- What quick_release.lua has left: something about those in line is out of the ordinary, or the owner does not hold the
-- lock, or there is more to it.

if sent_to then
    pcall(line().tell_next, lock, queue, places, 1, sent_to)
    return 1
elseif is_plain then
    if is_let_go then
        -- Given to somebody who did not hear it.
        redis.pcall('DEL', lock)
    else
        redis.call('DEL', lock, bell)
    end
    pcall(line().serve, lock, fence, queue, places, nil, false)
    return 1
end

local keep, uncertain, mine = tonumber(ARGV[2] or 0), ARGV[3], ARGV[4] or ''

local value = redis.pcall('GETRANGE', lock, '0', '255')
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
end

local ours = type(value) == 'string' and string.sub(value, 1, 32) == owner
if ours and keep > 0 then
    redis.call('PEXPIRE', lock, keep)
    -- No longer the owner's, or a renewal that is late would prolong it.
    redis.pcall('SET', lock, '-' .. value, 'PX', keep)
    local number = string.match(value, '^%x+ (%d+)') or 0
    redis.pcall('PEXPIRE', fence, at_least(keep + IDLE, number, clock()))
    if redis.pcall('EXISTS', queue) == 1 then
        local line = line()
        -- Whoever was sent the lock and lets it go has heard of it.
        pcall(line.hears, places, owner)
        pcall(line.tell_next, lock, queue, places, 1, nil)
    end
    redis.pcall('DEL', bell)
elseif ours then
    redis.call('DEL', lock, bell)
    if redis.pcall('EXISTS', queue) == 1 then
        pcall(line().serve, lock, fence, queue, places, nil, false)
    end
else
    -- Does nothing that counts, but where writes are refused: a replica that is behind must not say "not held".
    redis.call('PEXPIRE', tombstone or bell, REMEMBERED)
    local line = redis.call('EXISTS', queue) == 1 and line()
    if line then
        -- By pcall: whoever races need not have the rights of a line.
        pcall(line.hears, places, owner, line.channel_of(mine))
    end
    if line and mine ~= '' then
        local is_first = redis.call('ZRANGE', queue, '0', '0')[1] == mine
        redis.call('ZREM', queue, mine)
        if is_first and value == '' and redis.call('EXISTS', lock) == 0 then
            -- It was to look, and has not.
            pcall(line.serve, lock, fence, queue, places, nil, true)
        elseif is_first then
            pcall(line.tell_next, lock, queue, places, 0, nil)
        end
    end
end

if uncertain == '1' then
    redis.pcall('SET', tombstone, '', 'PX', REMEMBERED)
end
return ours and 1 or 0
