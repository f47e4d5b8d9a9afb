-- Admits a server, so that it votes.
--
-- KEYS[1]  the server's state
-- KEYS[2]  the locks that are kept; see end.lua
-- ARGV[1]  the fleet's time, microseconds, at which the client requested the states of the others
-- ARGV[2]  the tolerance of clocks, microseconds
-- ARGV[3]  the replication ID that the client has seen
-- ARGV[4]  1 if the fleet is new, so that there is no wait
-- ARGV[5]  the longest TTL, milliseconds
-- ARGV[6]  the number of servers
-- ARGV[7]  and on: fields of counters, and their values; locks that other servers keep, and the times
--          at which they end: see state.lua
--
-- Returns A (admitted) or N (it is too early, or the server has another replication ID), and the
-- server's time.
-- include run
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local text = string.format('%.0f', now)
local run = run()
local s = redis.call('HMGET', KEYS[1], 'run', 'withheld', 'since', 'wait')
if s[1] == run then return {'A', text} end
if s[2] == run and not (s[3] and string.find(s[3], '^%d+$') and s[4] and string.find(s[4], '^%d+$')) then
  return redis.error_reply('ERR holdfast: broken record 1: since or wait')
end
if run == '' or run ~= ARGV[3] or math.abs(now - ARGV[1]) > tonumber(ARGV[2]) then return {'N', text} end
if ARGV[4] ~= '1' and (s[2] ~= run or now < s[3] + s[4] * 1000) then return {'N', text} end
redis.call('ZCARD', KEYS[2]) -- the server refuses a key of another type here, before the first write
for i = 7, #ARGV, 2 do
  local value, key = string.match(ARGV[i], '^kept (%S+ %S+ %S+ %S+ %S+) (.+)$')
  local left = math.ceil((ARGV[i + 1] - now) / 1000)
  if value and left > 0 and left < 2 * 86400000 then -- a hold is at most a day
    redis.call('SET', key, value, 'NX', 'PX', string.format('%.0f', left))
    redis.call('ZADD', KEYS[2], ARGV[i + 1], value .. ' ' .. key)
  elseif not string.find(ARGV[i], '^kept ') and (tonumber(redis.call('HGET', KEYS[1], ARGV[i])) or 0) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSET', KEYS[1], 'max', ARGV[5], 'size', ARGV[6], 'run', run, 'whole', run)
redis.call('HDEL', KEYS[1], 'withheld', 'since', 'wait')
return {'A', text}
