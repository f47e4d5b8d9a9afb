-- Writes to a key unless the token is stale.
--
-- KEYS[1]  the key
-- KEYS[2]  the key of the largest token that was seen for KEYS[1], in the same hash slot
-- ARGV[1]  the token, decimal without leading zeros; 0 to read the largest one
-- ARGV[2]  and on, for each command: the number of its arguments after the key, its name, and
--          these arguments
--
-- Returns the largest token, after the write if there was one. If it is larger than
-- ARGV[1], nothing was written. If KEYS[2] has no token, the script returns its value, and
-- then an empty text; nothing was written.
local seen, token = redis.call('GET', KEYS[2]), ARGV[1]
if seen and not string.find(seen, '^[1-9]%d*$') then return {seen, ''} end
if token == '0' then return {seen or '0'} end
-- Compared as text, because Lua's numbers are exact only up to 2^53.
if seen and (#seen > #token or #seen == #token and seen > token) then return {seen} end -- mutation: redis-guard
if seen ~= token then redis.call('SET', KEYS[2], token) end
local i = 2
while i <= #ARGV do
  local n = tonumber(ARGV[i])
  redis.call(ARGV[i + 1], KEYS[1], unpack(ARGV, i + 2, i + 1 + n))
  i = i + 2 + n
end
return {token}
