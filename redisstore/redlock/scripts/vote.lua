-- Votes for a request: sets the lock's key if the lock is free, and raises the counter of tokens.
--
-- KEYS[1]  the lock
-- KEYS[2]  the server's state
-- KEYS[3]  the tombstone of this ballot
-- KEYS[4]  the tombstone of its request
-- KEYS[5]  the queue of the lock
-- KEYS[6]  the position: the time at which a wait began, and the request that waits. It is the longest wait of
--          those that this server has seen. While it stands, the lock is not given to younger requests
-- ARGV[1]  the value of the lock
-- ARGV[2]  the beginning of that value: the ballot and a space
-- ARGV[3]  the milliseconds after which the vote expires
-- ARGV[4]  the field of the name's counter
-- ARGV[5]  the proposed token
-- ARGV[6]  the fleet's time, microseconds, at which the client sent this
-- ARGV[7]  the tolerance of clocks, microseconds
-- ARGV[8]  the longest TTL that the client grants, milliseconds
-- ARGV[9]  the number of servers of the fleet
-- ARGV[10] 1 if the request has the grant, so that no position keeps it out
-- A request that does not wait, or has the grant, omits the other arguments:
-- ARGV[11] the queue entry
-- ARGV[12] the time at which the wait began
-- ARGV[13] the milliseconds after which the queue expires
-- ARGV[14] the milliseconds after which the position expires
--
-- Returns a letter, the server's time, and:
--   G COUNTER           a vote; COUNTER is the counter before this call
--   B COUNTER VALUE MS  no vote: the lock has VALUE, and expires after MS milliseconds; -1 if it
--                       does not expire
--   F COUNTER '' MS     no vote: the lock is free, and is kept for another request for MS milliseconds
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
-- The server refuses a queue or a position of another type here, before the first write.
if ARGV[11] then redis.call('ZRANGE', KEYS[5], 0, 0) end
local id = string.match(ARGV[2], '^[^.]+')
local since, first = string.match(redis.call('GET', KEYS[6]) or '', '^(%d+) (%S+)$')
local behind, left = first and first ~= id, 0
if behind and ARGV[11] then
  local a, b = tonumber(since), tonumber(ARGV[12])
  behind = a < b or a == b and first < id
end
if behind then
  left = redis.call('PTTL', KEYS[6])
  behind = left >= 0 and left <= 10000 -- otherwise the clock was set back: no position is for longer
end
-- wait makes the queue entry, and sets the position unless that of another request is older.
local function wait()
  if not ARGV[11] then return end
  redis.call('ZADD', KEYS[5], 'NX', ARGV[12], ARGV[11])
  redis.call('PEXPIRE', KEYS[5], ARGV[13])
  if not behind then redis.call('SET', KEYS[6], ARGV[12] .. ' ' .. id, 'PX', ARGV[14]) end
end
local counter = math.max(own, least)
local last = string.format('%.0f', counter)
if behind and ARGV[10] ~= '1' and redis.call('EXISTS', KEYS[1]) == 0 then
  wait()
  return {'F', text, last, '', left}
end
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
  if ARGV[11] then redis.call('ZREM', KEYS[5], ARGV[11]) end
  if first == id then redis.call('DEL', KEYS[6]) end
  return {'G', text, last}
end
wait()
return {'B', text, last, have, redis.call('PTTL', KEYS[1])}
