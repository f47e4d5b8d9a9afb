-- Reads a name.
--
-- KEYS[1]  the name
--
-- Returns I, the server's time, and the fields and values of the name's hash.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
return {'I', now, redis.call('HGETALL', KEYS[1])}
