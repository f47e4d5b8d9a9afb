-- Votes for a request: sets the lock's key if the lock is free, and raises the counter of tokens.
--
-- KEYS[1]  the lock
-- KEYS[2]  the server's state
-- KEYS[3]  the tombstone of this ballot
-- KEYS[4]  the tombstone of its request
-- KEYS[5]  the queue of the lock
-- ARGV[1]  the value of the lock
-- ARGV[2]  the beginning of that value: the ballot and a space
-- ARGV[3]  the milliseconds after which the vote expires
-- ARGV[4]  the field of the name's counter
-- ARGV[5]  the proposed token
-- ARGV[6]  the fleet's time, microseconds, at which the client sent this
-- ARGV[7]  the tolerance of clocks, microseconds
-- ARGV[8]  the longest TTL that the client grants, milliseconds
-- ARGV[9]  the number of servers of the fleet
-- A request that does not wait omits the other arguments:
-- ARGV[10] the queue entry
-- ARGV[11] the time at which the wait began
-- ARGV[12] the milliseconds after which the queue expires
--
-- Returns a letter, the server's time, and:
--   G COUNTER           a vote; COUNTER is the counter before this call
--   B COUNTER VALUE MS  no vote: the lock has VALUE, and expires after MS milliseconds; -1 if it
--                       does not expire
--   U                   the server is withheld: it was restarted, or lost its state
--   C                   the clocks differ by more than the tolerance, or the request came late
--   V                   the ballot was withdrawn
--   M MS                the fleet's longest TTL is smaller
--   S SIZE              the fleet has another number of servers
-- include run
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local text = string.format('%.0f', now)
local s = redis.call('HMGET', KEYS[2], 'run', ARGV[4], 'least', 'max', 'size')
if not votes(s[1]) then return {'U', text} end
if math.abs(now - ARGV[6]) > tonumber(ARGV[7]) then return {'C', text} end
local own, least = tonumber(s[2] or '0'), tonumber(s[3] or '0')
local function exact(x) return x and x >= 0 and x < 9007199254740992 end
if not exact(own) or not exact(least) or not exact(tonumber(s[4] or nil)) then
  return redis.error_reply('ERR holdfast: broken record 2: the counter, least or max')
end
if tonumber(ARGV[8]) > tonumber(s[4]) then return {'M', text, s[4]} end
if ARGV[9] ~= s[5] then return {'S', text, s[5]} end
if redis.call('EXISTS', KEYS[3], KEYS[4]) > 0 then return {'V', text} end
-- The server refuses a queue of another type here, before the first write.
if ARGV[10] then redis.call('ZRANGE', KEYS[5], 0, 0) end
local counter = math.max(own, least)
local last = string.format('%.0f', counter)
local mine = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3])
local have
if not mine then
  have = redis.call('GET', KEYS[1])
  if string.sub(have, 1, #ARGV[2]) == ARGV[2] then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    mine = true
  end
end
if mine then
  if tonumber(ARGV[5]) > counter then redis.call('HSET', KEYS[2], ARGV[4], ARGV[5]) end
  if ARGV[10] then redis.call('ZREM', KEYS[5], ARGV[10]) end
  return {'G', text, last}
end
if ARGV[10] then
  redis.call('ZADD', KEYS[5], 'NX', ARGV[11], ARGV[10])
  redis.call('PEXPIRE', KEYS[5], ARGV[12])
end
return {'B', text, last, have, redis.call('PTTL', KEYS[1])}
