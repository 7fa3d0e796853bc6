-- Who holds the lock. Writes nothing.
--
-- KEYS  1 the lock
-- Answers {value, remaining ms or -1, the server's time in µs}, or {} if it is free

local value = redis.call('GET', KEYS[1])
if not value then
    return {}
end
local now = redis.call('TIME')
return {value, redis.call('PTTL', KEYS[1]), string.format('%.0f', now[1] * 1000000 + now[2])}
