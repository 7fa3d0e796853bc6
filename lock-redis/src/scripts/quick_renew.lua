-- Renews the leases of claims that need nothing else: their token keys last, and the queue need not know.
-- Nearly all renewals are of this kind. Unusual ones are left to renew.lua, which runs next.
--
-- KEYS  the locks
-- ARGV  1 the ttl of all of them in ms   then for each of them its owner and number
-- Answers which of them it did not renew: 1 is the first

local ttl, others = ARGV[1], {}
for i, lock in ipairs(KEYS) do
    local mine = ARGV[i + 1]
    local value = redis.pcall('GETRANGE', lock, '0', '255')
    local is_mine = value == mine
    if not is_mine and type(value) == 'string' then
        -- A label may follow.
        is_mine = string.sub(value, 1, #mine + 1) == mine .. ' '
    end
    -- Never shortens. There is a way to say that to PEXPIRE, but not before Redis 7.
    if not (is_mine and redis.call('PTTL', lock) - ttl < 0 and redis.pcall('PEXPIRE', lock, ttl) == 1) then
        others[#others + 1] = i
    end
end
return others
