-- Reads the lock. Returns L, the server's time, the lock's value and the milliseconds left.
--
-- KEYS[1]  the lock
local t = redis.call('TIME')
return {'L', string.format('%.0f', t[1] * 1000000 + t[2]), redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1])}
