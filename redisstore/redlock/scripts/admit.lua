-- Admits a server, so that it votes.
--
-- KEYS[1]  the server's state
-- ARGV[1]  the fleet's time, microseconds, at which the client requested the states of the others
-- ARGV[2]  the tolerance of clocks, microseconds
-- ARGV[3]  the replication ID that the client has seen
-- ARGV[4]  1 if the fleet is new, so that there is no wait
-- ARGV[5]  the longest TTL, milliseconds
-- ARGV[6]  the number of servers
-- ARGV[7]  and on: fields of counters, and their values
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
if run == '' or run ~= ARGV[3] or math.abs(now - ARGV[1]) > tonumber(ARGV[2]) then return {'N', text} end
if ARGV[4] ~= '1' and (s[2] ~= run or now < s[3] + s[4] * 1000) then return {'N', text} end
for i = 7, #ARGV, 2 do
  if (tonumber(redis.call('HGET', KEYS[1], ARGV[i])) or 0) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSET', KEYS[1], 'max', ARGV[5], 'size', ARGV[6], 'run', run, 'whole', run)
redis.call('HDEL', KEYS[1], 'withheld', 'since', 'wait')
return {'A', text}
