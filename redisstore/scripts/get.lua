-- Returns the version and the data of a value, or nothing if it does not exist. See put.lua.
local v = redis.call('HMGET', KEYS[1], 'v', 'd')
if not v[1] then return {} end
return v
