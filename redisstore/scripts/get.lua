-- Reads a value: its version and its data, or nothing. See put.lua.
local v = redis.call('HMGET', KEYS[1], 'v', 'd')
if not v[1] then return {} end
return v
