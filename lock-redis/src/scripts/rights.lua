-- Tries every command that the other scripts use, on keys that do not exist, so that none of them
-- changes anything. Replies the names of those that this user is not allowed to run.
--
-- KEYS[1] to KEYS[5]  Keys for a lock, its token, its queue, its processes and a tombstone.
-- KEYS[6]             The share key, if locks are left free for clients that poll.
-- ARGV[1]             A channel for queued waiters, or '' without a queue.

local missing = {}
local error_of_the_server
local function try(name, ...)
    local answer = redis.pcall(name, ...)
    if type(answer) == 'table' and answer.err then
        local refused = string.find(answer.err, 'NOPERM', 1, true)
            or string.find(answer.err, "can't run this command", 1, true)
            or string.find(answer.err, "can't access at least one of the keys", 1, true)
            or string.find(answer.err, 'channel', 1, true)
            or string.find(answer.err, 'ACL failure', 1, true)
            or string.find(answer.err, 'Unknown Redis command', 1, true)
            or string.find(answer.err, 'Unknown command called', 1, true)
        if string.find(answer.err, 'READONLY', 1, true) then
            error_of_the_server = answer
        elseif refused then
            missing[#missing + 1] = name
        end
    end
end

try('GETRANGE', KEYS[1], 0, 0)
try('EXISTS', KEYS[5])
try('PTTL', KEYS[1])
try('TIME')
try('SET', KEYS[2], '', 'XX')
try('PEXPIRE', KEYS[1], 1)
try('DEL', KEYS[5])
if ARGV[1] ~= '' then
    try('ZADD', KEYS[3], 'XX', 1, '')
    try('ZRANGE', KEYS[3], 0, 0)
    try('ZSCORE', KEYS[4], '')
    try('ZCARD', KEYS[3])
    try('ZREM', KEYS[4], '')
    try('ZREMRANGEBYSCORE', KEYS[4], 0, 0)
    try('PUBLISH', ARGV[1], '')
end
if KEYS[6] then
    try('SET', KEYS[6], '', 'XX')
end
-- A replica cannot hold locks, even with all rights.
return error_of_the_server or missing
