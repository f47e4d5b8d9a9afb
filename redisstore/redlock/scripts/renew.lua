-- Sets a new deadline for a vote.
--
-- KEYS[1]  the lock
-- KEYS[2]  the tombstone of the ballot
-- ARGV[1]  the beginning of the lock's value
-- ARGV[2]  the milliseconds after which the vote expires; 0 to read only
-- ARGV[3]  the fleet's time, microseconds, at which the client sent this
-- ARGV[4]  the tolerance of clocks, microseconds
--
-- Returns a letter and the server's time:
--   R  renewed
--   C  the vote exists and is not renewed: the clocks differ by more than the tolerance, or the
--      request came late
--   N  the lock is free
--   O  another ballot has the vote
--   T  the grant was broken or withdrawn
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local text = string.format('%.0f', now)
local have = redis.call('GET', KEYS[1])
if have and string.sub(have, 1, #ARGV[1]) == ARGV[1] then
  if math.abs(now - ARGV[3]) > tonumber(ARGV[4]) then return {'C', text} end
  if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return {'R', text}
end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'T', text} end
return {have and 'O' or 'N', text}
