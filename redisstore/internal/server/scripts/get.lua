-- Returns the version and the data of a value, or nothing if it does not exist. See put.lua.
local v = redis.call('HMGET', KEYS[1], 'v', 'd')
if (v[1] or '') ~= '' and v[2] then return v end
if redis.call('HLEN', KEYS[1]) > 0 then error('holdfast: broken record 1: it has no version, or no data', 0) end
return {}
