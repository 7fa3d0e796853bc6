-- Who holds the lock. Writes nothing.
--
-- KEYS  1 the lock
-- Answers {value, remaining ms or -1, the server's time in µs}, or {} if it is free

local value = redis.call('GETRANGE', KEYS[1], 0, 255)
if value == '' and redis.call('EXISTS', KEYS[1]) == 0 then
    return {}
end
local now = redis.call('TIME')
return {value, redis.call('PTTL', KEYS[1]), string.format('%.0f', now[1] * 1000000 + now[2])}
