-- Ends a vote, if it exists, and notifies the first waiter if the lock is then free.
--
-- KEYS[1]  the lock
-- KEYS[2]  the server's state
-- KEYS[3]  a tombstone
-- KEYS[4]  the queue of the lock
-- ARGV[1]  the beginning of the lock's value
-- ARGV[2]  the milliseconds for which the tombstone remains; 0 for no tombstone
-- ARGV[3]  0, or the milliseconds for which the lock stays taken without a holder
-- ARGV[4]  a queue entry to remove, or the empty text
-- ARGV[5]  1 to notify a waiter
-- ARGV[6]  the fleet's time, microseconds, at which the client sent this
-- ARGV[7]  the tolerance of clocks, microseconds. A server whose clock differs by more sets no
--          deadline: after the clock is corrected, such a deadline could be hours away
--
-- Returns R (the vote existed), N (it did not) or U (it did not, and the server is withheld), and
-- the server's time.
-- include run
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local text = string.format('%.0f', now)
local inTime = math.abs(now - ARGV[6]) <= tonumber(ARGV[7])
if ARGV[2] ~= '0' and inTime then redis.call('SET', KEYS[3], '1', 'PX', ARGV[2]) end
if ARGV[4] ~= '' then redis.call('ZREM', KEYS[4], ARGV[4]) end
local have = redis.call('GET', KEYS[1])
local answer = 'N'
if have and string.sub(have, 1, #ARGV[1]) == ARGV[1] then
  answer = 'R'
  if ARGV[3] ~= '0' and inTime then
    redis.call('SET', KEYS[1], '*' .. string.match(have, '^%S+( .*)$'), 'PX', ARGV[3])
  else
    redis.call('DEL', KEYS[1])
    have = nil
  end
end
if not have then
  local first = ARGV[5] == '1' and redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  if first then
    redis.call('ZREM', KEYS[4], first)
    local id, channel = string.match(first, '^(%S+) (%S+)$')
    if id then redis.call('PUBLISH', channel, id) end
  end
  if answer == 'N' and not votes(redis.call('HGET', KEYS[2], 'run')) then answer = 'U' end
end
return {answer, text}
