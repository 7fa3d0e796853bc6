-- Who holds the lock, and how many wait in line. Writes nothing.
--
-- KEYS  1 the lock   2 its queue, if who asks stands in line
-- Answers {how many wait, value, remaining ms or -1, the server's time in µs}; no value if it is free

local waiting = KEYS[2] and redis.call('ZCARD', KEYS[2]) or false
local value = redis.call('GETRANGE', KEYS[1], 0, 255)
if value == '' and redis.call('EXISTS', KEYS[1]) == 0 then
    return {waiting, false, 0, 0}
end
local now = redis.call('TIME')
return {waiting, value, redis.call('PTTL', KEYS[1]), now[1] * 1000000 + now[2]}
