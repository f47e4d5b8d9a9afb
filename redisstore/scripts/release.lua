-- Ends a grant if it still exists, and wakes the next waiter.
--
-- KEYS[1]  the name
-- KEYS[2]  the bucket's counter of tokens. Without it no waiter starts before it confirms its grant
-- ARGV[1]  the grant's ID and its token, " ID TOKEN "
-- The client omits the other arguments, from the last one on, if they are 0:
-- ARGV[2]  the slot of the grant
-- ARGV[3]  0, or for how many microseconds the grant stays (a minimum hold)
-- ARGV[4]  0, or the server's time until which a request of this ID may arrive
--
-- Returns one of these answers:
--   R  released, or kept for a minimum hold
--   N  there is no such grant
local K, mine, minHold, refuseUntil = KEYS[1], ARGV[1], tonumber(ARGV[3] or '0'), tonumber(ARGV[4] or '0')
local slot = ARGV[2] or '0'
local found = redis.call('HMGET', K, 's0', 'm', 's' .. slot)
if minHold == 0 and refuseUntil == 0 and not found[2] then
  -- The fast path. Usually the name has only this grant. The key exists, so it has not expired.
  if not found[1] or not string.find(found[1], mine, 1, true) then return 'N' end
  redis.call('HDEL', K, 's0') -- the only field, so this removes the key
  return 'R'
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include plain

local e, h, t, k
if minHold == 0 and refuseUntil == 0 and slot == '0' and found[1] and string.find(found[1], mine, 1, true) then
  e, h, t, k = plainState(found[1], found[2])
end
if e and h ~= '0' and now < tonumber(e) then
  -- The script grants to the first entry, and notifies the entry that comes near the head.
  local entries = call('HMGET', K, 'q' .. h, 'q' .. (h + 1 + CLOSE))
  local id, entryEnds, channel, tag, owner
  if entries[1] then id, entryEnds, channel, tag, owner = string.match(entries[1], '^(%S+) 1 %d+ (%d+) %d+ ([^%s,]+),?(%S*) (.*)$') end
  if id and now < tonumber(entryEnds) then
    local mark, ends, token = '-0', now + CONFIRM, math.max(now, k + 1)
    if token < EXACT then
      if not lives(ends, e) then call('PEXPIRE', K, num(math.ceil((ends - now) / 1000) + 1)) end
      call('HDEL', K, '-')
      local text, message = num(token), nil
      if KEYS[2] and tag ~= '' and raise(KEYS[2], text) then
        mark, message = '-0+', start(id, text, tag)
      end
      local first = h + 1
      if h == t then first, t = '0', '0' end
      call('HSET', K, 's0', '1 ' .. channel .. ' ' .. owner .. ' ' .. id .. ' ' .. text .. ' ' .. num(now) .. ' ' .. num(ends) .. '+0',
        'i' .. id, mark, 'm', plain(num(ends), first, t, text))
      call('HDEL', K, 'q' .. h, 'i' .. string.match(mine, '%S+'))
      wake(entries[1], 'w', message)
      wake(entries[2], 'n')
      return 'R'
    end
  end
end

-- include common

known.s0, known.m, known['s' .. slot] = found[1], found[2], found[3]
starting = KEYS[2]
load()
sweep()
local g = released(mine, slot, refuseUntil)
if not g then
  local answer, rec = 'N', get('s' .. slot)
  if minHold > 0 and rec and string.find(rec, ' * ' .. string.match(mine, '%d+ $'), 1, true) then
    -- An earlier call has kept the grant. Replicas acknowledge writes, so this call writes it again.
    answer = 'R'
    writeGrant(slot, parseGrant(rec)) -- mutation: failover-keep-again
    st.changed = true
  end
  promote()
  commit()
  return answer
end
slot = tonumber(slot)
if minHold > 0 then
  -- The grant has no owner any more: no client renews or releases it, so it expires.
  if st.lone then st.lone = nil else put('i' .. g.id, false) end
  g.id, g.expires = '*', now + minHold
  keep(g.expires)
  writeGrant(slot, g)
  lower(g.expires)
  commit()
  return 'R'
end
drop(slot, g)
promote()
commit()
return 'R'
