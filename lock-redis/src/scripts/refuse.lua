-- Releases a lock that was granted to an owner that does not wait for it. A later grant of the same
-- owner is another one. Removes the stale entries of the owner's process from the queue: a server
-- that was restored to older data may have many of them.
--
-- * KEYS[1]: the lock
-- * KEYS[2]: its token key
-- * KEYS[3]: its queue
-- * KEYS[4]: the processes that wait
-- * KEYS[5]: the release key
-- * ARGV[1]: the owner
-- * ARGV[2]: the token of the grant
-- * ARGV[3]: the channel of its process
-- * ARGV[4]: the latest arrival of an entry at the grant, in µs
-- * ARGV[5]: the owners of this process that wait for the lock, 32 characters each, joined
--
-- Returns 1 if the owner held the lock by that grant, else 0.

local lock, token_key, queue, processes, release_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, token, channel, arrived_by, known = ARGV[1], ARGV[2], ARGV[3], ARGV[4], {}
for at = 1, #ARGV[5], 32 do
    known[string.sub(ARGV[5], at, at + 31)] = true
end
local by, number = string.match(redis.call('GETRANGE', lock, '0', '63'), '^(%x+) (%d+)')
local is_held = by == owner and number == token
if is_held then
    redis.call('DEL', lock, release_key)
end
local queued = queue_functions()
queued.heard_from(processes, owner, channel)
queued.sweep(queue, channel, arrived_by, known)
if is_held then
    queued.grant_next(lock, token_key, queue, processes, nil, false)
end
return is_held and 1 or 0
