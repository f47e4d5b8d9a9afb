-- Writes a larger token to the lock, if the vote exists.
--
-- KEYS[1]  the lock
-- KEYS[2]  the server's state
-- ARGV[1]  the beginning of the lock's value
-- ARGV[2]  the new value of the lock
-- ARGV[3]  the field of the name's counter
-- ARGV[4]  the token
--
-- Returns A (written) or N (the vote does not exist), and the server's time.
local t = redis.call('TIME')
local text = string.format('%.0f', t[1] * 1000000 + t[2])
local have = redis.call('GET', KEYS[1])
if not have or string.sub(have, 1, #ARGV[1]) ~= ARGV[1] then return {'N', text} end
if (tonumber(redis.call('HGET', KEYS[2], ARGV[3])) or 0) < tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
end
redis.call('SET', KEYS[1], ARGV[2], 'XX', 'KEEPTTL')
return {'A', text}
