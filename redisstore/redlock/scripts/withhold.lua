-- Withholds a server: the server does not vote until the wait is over. It was restarted, has lost
-- its state, or its clock differs from the fleet's time by more than the tolerance.
--
-- KEYS[1]  the server's state
-- ARGV[1]  the fleet's time, microseconds, at which the client sent this
-- ARGV[2]  the tolerance of clocks, microseconds
-- ARGV[3]  the milliseconds after which every forgotten lease has expired
-- ARGV[4]  1 if the client has found that the clock differs by more than the tolerance
--
-- Returns a letter and the server's time:
--   A     the server votes
--   C     the clock still differs by more than the tolerance: the wait has not begun
--   W MS  the server is withheld for MS milliseconds more
-- include run
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local text = string.format('%.0f', now)
local run = run()
local s = redis.call('HMGET', KEYS[1], 'run', 'withheld', 'since', 'wait')
if math.abs(now - ARGV[1]) > tonumber(ARGV[2]) then
  if ARGV[4] == '1' then redis.call('HDEL', KEYS[1], 'run', 'withheld') end
  return {'C', text}
end
if s[1] == run then return {'A', text} end
if s[2] == run and not (s[3] and string.find(s[3], '^%d+$') and s[4] and string.find(s[4], '^%d+$')) then
  return redis.error_reply('ERR holdfast: broken record 1: since or wait')
end
if s[2] ~= run then
  redis.call('HSET', KEYS[1], 'withheld', run, 'since', text, 'wait', ARGV[3])
  s[3], s[4] = now, ARGV[3]
elseif tonumber(ARGV[3]) > tonumber(s[4]) then
  redis.call('HSET', KEYS[1], 'wait', ARGV[3])
  s[4] = ARGV[3]
end
return {'W', text, string.format('%.0f', math.max(0, math.ceil(s[3] / 1000 + s[4] - now / 1000)))}
