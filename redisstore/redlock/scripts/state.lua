-- Returns the server's state: S, the server's time, its run_id and replication ID, and the fields and
-- values of the state.
--
-- KEYS[1]  the server's state
local t = redis.call('TIME')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') ..
  string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, run)
table.insert(answer, 1, string.format('%.0f', t[1] * 1000000 + t[2]))
table.insert(answer, 1, 'S')
return answer
