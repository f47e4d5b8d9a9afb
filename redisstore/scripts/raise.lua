-- Raises the bucket's counter of tokens. The client calls it after a grant that was made without
-- the counter, while the slot moved.
--
-- KEYS[1]  the counter
-- ARGV[1]  the token
--
-- Returns R and the counter.
local have = tonumber(redis.call('GET', KEYS[1])) or 0
if have < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  return {'R', ARGV[1]}
end
return {'R', string.format('%.0f', have)}
