-- Ends a vote, if it exists, and notifies the first waiter if the lock is then free.
--
-- KEYS[1]  the lock
-- KEYS[2]  the server's state
-- KEYS[3]  a tombstone
-- KEYS[4]  the queue of the lock
-- KEYS[5]  the locks that are kept, by the server's time at which they end, in microseconds. They have
--          no client that would restore them at a restarted server
-- KEYS[6]  the position of the request that has waited longest; see vote.lua
-- ARGV[1]  the beginning of the lock's value
-- ARGV[2]  the milliseconds for which the tombstone remains; 0 for no tombstone
-- ARGV[3]  0, or the milliseconds for which the lock stays taken without a holder
-- ARGV[4]  a queue entry to remove, with the position of its request, or the empty text
-- ARGV[5]  1 to notify a waiter
-- ARGV[6]  the fleet's time, microseconds, at which the client sent this
-- ARGV[7]  the tolerance of clocks, microseconds. A server whose clock differs by more sets no
--          deadline: after the clock is corrected, such a deadline could be hours away
--
-- Returns a letter and the server's time:
--   R  the vote existed
--   K  the lock stays taken: the vote existed, or an earlier request for this has arrived
--   C  the lock should stay taken, and the clocks differ by more than the tolerance, or the request
--      came late: nothing has changed
--   N  the vote did not exist
--   U  it did not, and the server is withheld
-- include run
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local text = string.format('%.0f', now)
local inTime = math.abs(now - ARGV[6]) <= tonumber(ARGV[7])
local keep = ARGV[3] ~= '0'
if keep and not inTime then return {'C', text} end
-- The server refuses keys of another type here, before the first write.
local have = redis.call('GET', KEYS[1])
redis.call('ZRANGE', KEYS[4], 0, 0)
local first = ARGV[4] ~= '' and redis.call('GET', KEYS[6])
local ended = keep and redis.call('ZRANGE', KEYS[5], '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
if ARGV[2] ~= '0' and inTime then redis.call('SET', KEYS[3], '1', 'PX', ARGV[2]) end
if ARGV[4] ~= '' then
  redis.call('ZREM', KEYS[4], ARGV[4])
  if first and string.match(first, '^%d+ (%S+)$') == string.match(ARGV[4], '^%S+') then redis.call('DEL', KEYS[6]) end
end
local answer = 'N'
if have and string.sub(have, 1, #ARGV[1]) == ARGV[1] then
  if keep then
    answer = 'K'
    have = '*' .. have
    redis.call('SET', KEYS[1], have, 'PX', ARGV[3])
    for _, lock in ipairs(ended) do redis.call('ZREM', KEYS[5], lock) end
    redis.call('ZADD', KEYS[5], now + ARGV[3] * 1000, have .. ' ' .. KEYS[1])
  else
    answer = 'R'
    redis.call('DEL', KEYS[1])
    have = nil
  end
elseif have and keep and string.sub(have, 1, #ARGV[1] + 1) == '*' .. ARGV[1] then
  answer = 'K'
end
if not have then
  local first = ARGV[5] == '1' and redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  if first then
    redis.call('ZREM', KEYS[4], first)
    local id, channel = string.match(first, '^(%S+) (%S+)$')
    if id then redis.call('PUBLISH', channel, id) end
  end
  local admitted = redis.pcall('HGET', KEYS[2], 'run') -- a server whose state has another type has no vote
  if answer == 'N' and not votes(type(admitted) == 'string' and admitted) then answer = 'U' end
end
return {answer, text}
