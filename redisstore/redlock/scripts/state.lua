-- Returns S, the server's time, its replication ID, and the fields and values of its state. The ID
-- is empty for a replica.
--
-- KEYS[1]  the server's state
-- include run
local t = redis.call('TIME')
local run = run()
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, run)
table.insert(answer, 1, string.format('%.0f', t[1] * 1000000 + t[2]))
table.insert(answer, 1, 'S')
return answer
