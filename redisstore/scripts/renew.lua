-- Sets a grant's deadline anew, or only looks whether the grant stands.
--
-- KEYS[1]  the name
-- ARGV[1]  the grant's ID and its token, " ID TOKEN "
-- ARGV[2]  its seat
-- ARGV[3]  TTL, microseconds; 0 to look
--
-- Answers R, N (there is no such grant) or T (it was taken away), and the server's
-- time.
local K = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local text = string.format('%.0f', now)
local rec, fields = redis.pcall('GET', K), nil
if type(rec) == 'table' then
  fields = redis.call('HMGET', K, 's' .. ARGV[2], 'L', 'e', 'v' .. string.match(ARGV[1], '%S+'))
  rec = fields[1]
end
if not rec or not string.find(rec, ARGV[1], 1, true) then return {fields and fields[4] and 'T' or 'N', text} end
local before, at, had = string.match(rec, '^(.* )(%d+)%+(%d+)$')
if at + had <= now then return {'N', text} end
if ARGV[3] == '0' then return {'R', text} end
local ttl = tonumber(ARGV[3])
local after = before .. text .. '+' .. ARGV[3]
-- The key's life first: it needs no memory, and what comes after it in a script
-- is then allowed on a server that has none left.
local ms = math.ceil(ttl / 1000) + 1
redis.call('PEXPIRE', K, string.format('%.0f', math.max(ms, redis.call('PTTL', K))))
if not fields then
  redis.call('SET', K, after, 'KEEPTTL')
  return {'R', text}
end
redis.call('HSET', K, 's' .. ARGV[2], after)
if string.match(fields[2], '^%d+:1$') or now + ttl < tonumber(fields[3]) then redis.call('HSET', K, 'e', string.format('%.0f', now + ttl)) end
return {'R', text}
