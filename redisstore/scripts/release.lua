-- Ends a grant if it still stands, and wakes who is next; or grants at once to
-- the next if that is a place of the same client.
--
-- KEYS[1]  the name
-- KEYS[2]  with ARGV[6]: the bucket's counter of tokens
-- ARGV[1]  the grant's ID
-- ARGV[2]  its token
-- ARGV[3]  its seat
-- ARGV[4]  0, or for how many microseconds to leave it standing
-- ARGV[5]  0, or the server's time until which a request of this ID may arrive
-- ARGV[6]  optional: the number of the client's own place
-- ARGV[7]  its ID
-- ARGV[8]  the highest token the client has seen
-- ARGV[9]  the server's time after which nothing is granted any more
-- ARGV[10] its owner
--
-- Answers, each followed by the server's time or 0:
--   R             released, or left standing
--   R TOKEN SEAT  released, and granted to the place
--   N             there is no such grant
local K = KEYS[1]
local mine = ARGV[1] .. ' ' .. ARGV[2] .. ' '
if ARGV[4] == '0' and ARGV[5] == '0' then
  -- It stands alone, as most often. A key that is there has not expired.
  local rec = redis.pcall('GET', K)
  if not rec then return 'N 0' end
  if type(rec) == 'string' then
    if string.sub(rec, 1, #mine) ~= mine then return 'N 0' end
    redis.call('DEL', K)
    return 'R 0'
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include common

load()
sweep()
local seat = tonumber(ARGV[3])
local rec = call('HGET', K, 's' .. seat)
if not rec or string.sub(rec, 1, #mine) ~= mine then
  promote()
  save()
  return {'N', num(now)}
end
local g = parseGrant(rec)
if ARGV[4] ~= '0' then
  -- Nobody owns it any more: it can neither be renewed nor released, only end.
  call('HDEL', K, 'i' .. g.id)
  g.id, g.expires = '*', now + tonumber(ARGV[4])
  keep(g.expires)
  writeGrant(seat, g)
  if st.count == 1 or g.expires < st.e then st.e = g.expires end
  save()
  return {'R', num(now)}
end
drop(seat, g)
if ARGV[5] ~= '0' then
  purge(ARGV[1])
  void(ARGV[1], tonumber(ARGV[5]))
end
local answer = {'R', num(now)}
if ARGV[6] and KEYS[2] and now <= tonumber(ARGV[9]) then
  local p = head()
  if p and st.h == tonumber(ARGV[6]) and p.id == ARGV[7] and admits(p.limit) then
    leave(st.h, p)
    head()
    local token, to = grant(KEYS[2], ARGV[8], p.id, p.limit, p.ttl, p.channel, ARGV[10])
    call('HSET', K, 'i' .. p.id, '=' .. to)
    approach()
    answer = {'R', num(now), token, num(to)}
  end
end
promote()
save()
return answer
