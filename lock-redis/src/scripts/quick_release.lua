-- Removes every trace of an owner, and nothing of anybody else's. A lock that was let go is the next
-- waiter's when this ends.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 its places   5 its bell
-- ARGV  1 owner
-- If there is more to it than letting go what it holds:
-- KEYS  6 the tombstone of this owner
-- ARGV  2 keep others out for so many ms, or 0   3 '1' if an attempt may still arrive
--       4 what stands for this owner in the queue, or ''
-- Answers 1: it held the lock until now   0: it did not
--
-- Everything after the lock was let go is by pcall: a release that was done must not end as an error. What frees
-- memory or only sets an expiry is allowed at the memory limit, and after it so is every other write of the
-- script: that is why SET never comes first.
--
-- Nearly every release ends in this file: see quick_acquire.lua.

local lock, fence, queue, places, bell, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

if not ARGV[2] and redis.pcall('GETRANGE', lock, '0', '31') == owner and redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', lock, bell)
    return 1
end

