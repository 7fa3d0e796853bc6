-- Gives back a lock that was granted to an owner which does not wait for it, and removes the stale
-- entries of its process from the queue: a server that came back to older data may have many of
-- them.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 its places   5 its bell
-- ARGV  1 the owner   2 the channel of its process   3 the latest arrival of an entry at the grant in µs
--       4 the owners of this process that wait for the lock, one after the other
-- Answers 1: the owner held the lock until now   0: it did not

local lock, fence, queue, places, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, channel, arrived_by, known = ARGV[1], ARGV[2], ARGV[3], {}
for at = 1, #ARGV[4], 32 do
    known[string.sub(ARGV[4], at, at + 31)] = true
end
local is_held = redis.call('GETRANGE', lock, '0', '31') == owner
if is_held then
    redis.call('DEL', lock, bell)
end
local line = line()
line.hears(places, owner, channel)
line.sweep(queue, channel, arrived_by, known)
if is_held then
    line.serve(lock, fence, queue, places, nil, false)
end
return is_held and 1 or 0
