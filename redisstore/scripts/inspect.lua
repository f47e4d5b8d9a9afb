-- Reads a name.
--
-- KEYS[1]  the name
--
-- Answers I, the server's time, and the fields and values of the name's hash, or
-- S, the server's time, and a lone grant.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
if redis.call('TYPE', KEYS[1]).ok == 'string' then return {'S', now, redis.call('GET', KEYS[1])} end
return {'I', now, redis.call('HGETALL', KEYS[1])}
