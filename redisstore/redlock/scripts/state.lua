-- Returns S, the server's time, its replication ID, the fields and values of its state, and the locks
-- that are kept: "kept", a space, the lock's value, a space and its key, and the time at which it ends.
-- The ID is empty for a replica.
--
-- KEYS[1]  the server's state
-- KEYS[2]  the locks that are kept; see end.lua
-- include run
local t = redis.call('TIME')
local run = run()
local answer = redis.call('HGETALL', KEYS[1])
local kept = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #kept, 2 do
  table.insert(answer, 'kept ' .. kept[i])
  table.insert(answer, string.format('%.0f', kept[i + 1]))
end
table.insert(answer, 1, run)
table.insert(answer, 1, string.format('%.0f', t[1] * 1000000 + t[2]))
table.insert(answer, 1, 'S')
return answer
