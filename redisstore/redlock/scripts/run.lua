-- run returns the replication ID of the server, or '' if the server is a replica.
local function run()
  local info = redis.call('INFO', 'replication')
  return string.find(info, 'role:master', 1, true) and string.match(info, 'master_replid:(%w+)') or ''
end
-- votes reports whether the server is a primary, and its ID is the one with which it was admitted.
local function votes(admitted)
  if not admitted then return false end
  local info = redis.call('INFO', 'replication')
  return string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. admitted, 1, true)
end
