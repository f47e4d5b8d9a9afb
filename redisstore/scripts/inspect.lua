-- Reads a name.
--
-- KEYS[1]  the name
--
-- Returns I, the server's time, and the fields and values of the name's hash.
local K = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include plain
-- include common

load({'s0', 'm'})
return {'I', num(now), call('HGETALL', K)}
