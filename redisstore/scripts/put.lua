-- Writes a value if it still has a given version.
--
-- KEYS[1]  the value, a hash: v is its version, d its data
-- ARGV[1]  the version that it must have, empty if it must not exist
-- ARGV[2]  the new version
-- ARGV[3]  the data
--
-- Returns 1, or 0 if the value has another version.
if (redis.call('HGET', KEYS[1], 'v') or '') ~= ARGV[1] then return {0} end
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'd', ARGV[3])
return {1}
