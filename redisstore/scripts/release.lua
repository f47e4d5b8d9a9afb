-- Ends a grant if it still stands, and wakes the next waiter; or grants at once to the
-- next queue entry if that is one of the same client.
--
-- KEYS[1]  the name
-- KEYS[2]  with ARGV[5]: the bucket's counter of tokens
-- ARGV[1]  the grant's ID and its token, " ID TOKEN "
-- The others are left out where they are 0, from the last one on:
-- ARGV[2]  its slot
-- ARGV[3]  0, or for how many microseconds to leave it standing
-- ARGV[4]  0, or the server's time until which a request of this ID may arrive
-- ARGV[5]  the number of the client's own queue entry
-- ARGV[6]  its ID
-- ARGV[7]  the highest token the client has seen
-- ARGV[8]  the server's time after which nothing is granted any more
-- ARGV[9]  its owner
-- ARGV[10] how many tokens it is to reserve; left out where it is 1
--
-- Returns:
--   R                  released, or left standing
--   R TIME TOKEN SLOT TOKENS
--                      released, and granted to the entry; and the server's time
--   N                  there is no such grant
local K, mine, keeping, voiding = KEYS[1], ARGV[1], tonumber(ARGV[3] or '0'), tonumber(ARGV[4] or '0')
local slot = ARGV[2] or '0'
local found = redis.call('HMGET', K, 's0', 'm', 's' .. slot)
if keeping == 0 and voiding == 0 and not found[2] then
  -- It stands alone, as most often. A key that is there has not expired.
  if not found[1] or not string.find(found[1], mine, 1, true) then return 'N' end
  redis.call('DEL', K)
  return 'R'
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include common

known.s0, known.m, known['s' .. slot] = found[1], found[2], found[3]
counter = KEYS[2]
load()
sweep()
local rec = get('s' .. slot)
if not rec or not string.find(rec, mine, 1, true) then
  local id = string.match(mine, '%S+')
  local seq = get('i' .. id)
  if voiding > 0 then
    purge(id)
    withdraw(id, voiding)
  elseif seq and string.find(seq, '^%d') then
    purge(id) -- a failover that lost the grant has left its queue entry
  end
  promote()
  commit()
  return 'N'
end
local g = parseGrant(rec)
slot = tonumber(slot)
if voiding > 0 then withdraw(g.id, voiding) end
if keeping > 0 then
  -- It has no owner any more: it can neither be renewed nor released, only expire.
  if st.lone then st.lone = nil else put('i' .. g.id, false) end
  g.id, g.expires = '*', now + keeping
  keep(g.expires)
  writeGrant(slot, g)
  lower(g.expires)
  commit()
  return 'R'
end
drop(slot, g)
local answer = 'R'
if ARGV[5] and KEYS[2] and now <= tonumber(ARGV[8]) then
  local p = head()
  if p and st.h == tonumber(ARGV[5]) and p.id == ARGV[6] and admits(p.limit) then
    put('q' .. ARGV[5], false)
    st.h = st.h + 1
    local token, to, tokens = grant(ARGV[7], '=', p.id, p.limit, p.ttl, p.channel, ARGV[9], tonumber(ARGV[10] or nil))
    answer = {'R', num(now), token, num(to), tokens}
  end
end
promote()
commit()
return answer
