-- Removes the queue entry or the grant of a request, and leaves a tombstone for calls of that
-- request that may still arrive.
--
-- KEYS[1]  the name
-- ARGV[1]  the request's ID
-- ARGV[2]  the server's time until which a request of this ID may arrive, or 0
--
-- Returns U and the server's time.
local K = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include plain
-- include common

load({'s0', 'm', 'i' .. ARGV[1]})
if st.exists then
  sweep()
  purge(ARGV[1])
end
withdraw(ARGV[1], tonumber(ARGV[2]))
if st.exists then
  head()
  promote()
end
commit()
return {'U', num(now)}
