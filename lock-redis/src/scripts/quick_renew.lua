-- Renews the leases of claims that need nothing else: their token keys last, and the queue is not
-- concerned. Nearly all renewals are of this kind. Unusual ones are left to renew.lua, which runs
-- next.
--
-- KEYS     The locks.
-- ARGV[1]  The ttl of all of them in ms. Then, for each lock, its owner id and token.
--
-- Replies the positions of those that it did not renew, from 1.

local ttl, others = ARGV[1], {}
for i, lock in ipairs(KEYS) do
    local mine = ARGV[i + 1]
    local value = redis.pcall('GETRANGE', lock, '0', '255')
    local is_mine = value == mine
    if not is_mine and type(value) == 'string' then
        -- A label may follow.
        is_mine = string.sub(value, 1, #mine + 1) == mine .. ' '
    end
    -- Never shortens. PEXPIRE has an option for that, but only from Redis 7 on.
    if not (is_mine and redis.call('PTTL', lock) - ttl < 0 and redis.pcall('PEXPIRE', lock, ttl) == 1) then
        others[#others + 1] = i
    end
end
return others
