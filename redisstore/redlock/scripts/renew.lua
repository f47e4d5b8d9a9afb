-- Sets a new deadline for a vote.
--
-- KEYS[1]  the lock
-- KEYS[2]  the tombstone of the ballot
-- ARGV[1]  what the lock's value begins with
-- ARGV[2]  milliseconds for which the vote stands; 0 to only read it
-- ARGV[3]  the fleet's time, microseconds, when this was sent
-- ARGV[4]  the tolerance of clocks, microseconds
--
-- Returns R (renewed), C (the vote stands and is not renewed: the clock is out of line,
-- or the request came late), N (the lock is free), O (it is another's), T (the grant was broken or
-- withdrawn); and the server's time.
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
