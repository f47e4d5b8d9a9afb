-- Ends a grant if it still stands, and wakes who is next; or grants at once to
-- the next if that is a place of the same client.
--
-- KEYS[1]  the name
-- KEYS[2]  with ARGV[5]: the bucket's counter of tokens
-- ARGV[1]  the grant's ID and its token, " ID TOKEN "
-- The others are left out where they are 0, from the last one on:
-- ARGV[2]  its seat
-- ARGV[3]  0, or for how many microseconds to leave it standing
-- ARGV[4]  0, or the server's time until which a request of this ID may arrive
-- ARGV[5]  the number of the client's own place
-- ARGV[6]  its ID
-- ARGV[7]  the highest token the client has seen
-- ARGV[8]  the server's time after which nothing is granted any more
-- ARGV[9]  its owner
--
-- Answers:
--   R                  released, or left standing
--   R TIME TOKEN SEAT  released, and granted to the place; and the server's time
--   N                  there is no such grant
local K, mine, keeping, voiding = KEYS[1], ARGV[1], tonumber(ARGV[3] or '0'), tonumber(ARGV[4] or '0')
if keeping == 0 and voiding == 0 then
  -- It stands alone, as most often. A key that is there has not expired.
  local rec = redis.pcall('GET', K)
  if not rec then return 'N' end
  if type(rec) == 'string' then
    if not string.find(rec, mine, 1, true) then return 'N' end
    redis.call('DEL', K)
    return 'R'
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include common

load()
sweep()
local seat = tonumber(ARGV[2] or '0')
local rec = call('HGET', K, 's' .. seat)
if not rec or not string.find(rec, mine, 1, true) then
  if voiding > 0 then
    local id = string.match(mine, '%S+')
    purge(id)
    void(id, voiding)
  end
  promote()
  save()
  return 'N'
end
local g = parseGrant(rec)
if keeping > 0 then
  -- Nobody owns it any more: it can neither be renewed nor released, only end.
  call('HDEL', K, 'i' .. g.id)
  g.id, g.expires = '*', now + keeping
  keep(g.expires)
  writeGrant(seat, g)
  if st.count == 1 or g.expires < st.e then st.e = g.expires end
  save()
  return 'R'
end
drop(seat, g)
if voiding > 0 then
  purge(g.id)
  void(g.id, voiding)
end
local answer = 'R'
if ARGV[5] and KEYS[2] and now <= tonumber(ARGV[8]) then
  local p = head()
  if p and st.h == tonumber(ARGV[5]) and p.id == ARGV[6] and admits(p.limit) then
    leave(st.h, p)
    head()
    local token, to = grant(KEYS[2], ARGV[7], p.id, p.limit, p.ttl, p.channel, ARGV[9])
    call('HSET', K, 'i' .. p.id, '=' .. to)
    answer = {'R', num(now), token, num(to)}
  end
end
promote()
save()
return answer
