-- Reports the holder of a lock and the length of its queue. Writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its queue, if this client queues
--
-- Replies {length of the queue, value, remaining ms or -1, the server's time in µs, type of the
-- key}. The value is false if the lock is free. The type is '' unless a foreign client keeps
-- something other than a string there.

local waiting = KEYS[2] and redis.call('ZCARD', KEYS[2]) or false
local value, err = lock_at(KEYS[1])
if err then
    return err
elseif not value then
    return {waiting, false, 0, 0, ''}
end
-- A user without the right to TYPE sees a holder without a type.
local kind = value == '' and redis.pcall('TYPE', KEYS[1]).ok or ''
local now = redis.call('TIME')
return {waiting, value, redis.call('PTTL', KEYS[1]), now[1] * 1000000 + now[2], kind}
