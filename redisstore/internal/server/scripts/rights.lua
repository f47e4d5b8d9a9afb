-- Runs each command that the scripts of locks need, on a key that no lock has. It leaves nothing at the server.
--
-- KEYS: two keys of one hash slot, which do not exist.
-- ARGV: a channel without subscribers.
--
-- Returns the commands that failed, each followed by its error.
local text, hash = KEYS[1], KEYS[2]
local failed = {}
for _, c in ipairs({
  {'set', text, '1', 'px', '1000'}, {'get', text}, {'pttl', text}, {'pexpire', text, '1000'}, {'del', text},
  {'hset', hash, 'a', '1'}, {'hget', hash, 'a'}, {'hlen', hash}, {'hkeys', hash}, {'hmget', hash, 'a'},
  {'hgetall', hash}, {'pexpire', hash, '1000'}, {'hdel', hash, 'a'}, {'time'}, {'publish', ARGV[1], ''},
}) do
  local answer = redis.pcall(unpack(c))
  if type(answer) == 'table' and answer.err then
    failed[#failed + 1] = c[1]
    failed[#failed + 1] = answer.err
  end
end
return failed
