-- Writes a value if it still has a given version.
--
-- KEYS[1]  the value, a hash: v is its version, d its data
-- ARGV[1]  the version that it must have, empty if it must not exist
-- ARGV[2]  the new version
-- ARGV[3]  the data
--
-- Returns 1, or 0 if the value has another version.
local v = redis.call('HMGET', KEYS[1], 'v', 'd')
if not ((v[1] or '') ~= '' and v[2]) and redis.call('HLEN', KEYS[1]) > 0 then
  error('holdfast: broken record 1: it has no version, or no data', 0)
end
if (v[1] or '') ~= ARGV[1] then return {0} end
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'd', ARGV[3])
return {1}
