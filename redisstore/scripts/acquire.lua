-- Grants a name, makes a queue entry, or refuses the request. A call for an existing queue entry
-- refreshes the entry, and grants if the entry is the first one and the limits allow it. Before
-- that, in the same step, a call may release another grant of its client.
--
-- KEYS[1]  the name
-- KEYS[2]  the bucket's counter of tokens; absent while the hash slot moves
-- ARGV[1]  the request: "LIMIT CHANNEL OWNER ID". CHANNEL is p: and the channel on which the script
--          notifies the client, or - for none
-- ARGV[2]  TTL, microseconds
-- ARGV[3]  TTL, milliseconds, rounded up: the time to live of the key
-- ARGV[4]  the server's time after which the script refuses the request
-- ARGV[5]  the highest token that the client has seen
-- The first call of a request that does not wait omits the other arguments:
-- ARGV[6]  1 if the request waits, 0 if it does not
-- ARGV[7]  the number of its queue entry, 0 if it has none
-- ARGV[8]  1 if an earlier call of this request had no answer
-- ARGV[9]  the number of tokens to reserve; absent if it is 1
-- ARGV[10] the tag of this call, if the client may start before it confirms the grant. ARGV[9] is
--          then 1. The tag may be empty
-- ARGV[11] the ID and the token of a grant to release first, " ID TOKEN "
-- ARGV[12] the slot of that grant
-- ARGV[13] 0, or the server's time until which a request with the ID of that grant may arrive
--
-- Returns one of these answers. In all but the first, the server's time follows the letter:
--   GTOKEN                          granted in slot 0; the token is the server's time
--   G TOKEN SLOT TOKENS             granted; TOKENS is the number of tokens, from TOKEN on
--   Q SEQ AHEAD REFRESH EXPIRY ...  a queue entry with AHEAD entries before it. The client refreshes
--                                   it after REFRESH milliseconds. The first grant expires after
--                                   EXPIRY milliseconds. Then the holders
--   B ...                           not granted; then the holders
--   X                               the queue entry does not exist any more
--   L                               the request came too late
--   V                               the ID of the request is withdrawn for a while: the request was
--                                   rolled back, or its grant was taken away
-- With L and V the script has released nothing. If the grant to release had already ended, the
-- letters are g and q in place of G and Q.
local K = KEYS[1]
local time = redis.call('TIME')
local text = time[2]
while #text < 6 do text = '0' .. text end
text = time[1] .. text
local now = tonumber(text)
if now > tonumber(ARGV[4]) then return {'L', text} end

if KEYS[2] and not ARGV[6] then
  -- The fast path. Usually the name is free. Every lock takes these commands, so they are few.
  if redis.call('HLEN', K) == 0 then -- mutation: redis-first
    local token, seen = text, tonumber(ARGV[5])
    local last = redis.call('SET', KEYS[2], token, 'GET')
    last = last and tonumber(last) or 0
    if last >= now or seen >= now then
      last = math.max(last, seen) + 1
      token = string.format('%.0f', last)
      if last >= 9007199254740992 then -- EXACT in plain.lua
        redis.call('SET', KEYS[2], string.format('%.0f', last - 1))
        return redis.error_reply('ERR holdfast: tokens of this bucket are used up')
      end
      redis.call('SET', KEYS[2], token)
    end
    redis.call('HSET', K, 's0', ARGV[1] .. ' ' .. token .. ' ' .. text .. ' ' .. text .. '+' .. ARGV[2])
    local done = redis.pcall('PEXPIRE', K, ARGV[3])
    if type(done) == 'table' then -- refused: the name stays free
      if type(redis.pcall('HDEL', K, 's0')) == 'table' then redis.call('DEL', K) end
      return done
    end
    if token == text then return 'G' .. text end
    return 'G ' .. text .. ' ' .. token .. ' 0'
  end
  -- If a lone grant blocks the request, the script returns its holder and changes nothing.
  local found = redis.call('HMGET', K, 's0', 'm')
  if found[1] and not found[2] then
    local other, at, ttl = string.match(found[1], '^(%d+) .* (%d+)%+(%d+)$')
    if other and at + ttl > now and (other == '1' or string.sub(ARGV[1], 1, 2) == '1 ') then return {'B', text, '0 ' .. found[1]} end
  end
end

local limit, channel, owner, id = string.match(ARGV[1], '^(%d+) (%S+) (%S+) (%S+)$')
local ttl, seen, waits = tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[6] == '1'
local entryNumber, again, tokens, tag = ARGV[7] or '0', ARGV[8] == '1', ARGV[9], ARGV[10] or ''
-- The grant to release first; old is nil if there is none.
local old, oldSlot, oldUntil = ARGV[11], ARGV[12], ARGV[13]
local found = redis.call('HMGET', K, 's0', 'm', 'v' .. id, 'i' .. id)

-- include plain

local e, h, t, k
if limit == '1' and waits and KEYS[2] and found[2] and not found[3] then
  e, h, t, k = plainState(found[1], found[2])
end
if e and now < tonumber(e) then
  local own = found[4]
  if old and (own or again or oldSlot ~= '0' or oldUntil ~= '0' or not string.find(found[1], old, 1, true)) then
    -- The general path decides.
  elseif old and t == '0' then -- mutation: redis-swap
    -- No client waits, so the grant of this request replaces the old one. A full server refuses the
    -- first write. HDEL of a missing field tries the user's right to remove fields before the change.
    local least = math.max(tonumber(k), seen) + 1
    local decides, last = least <= now and now < EXACT, nil
    if decides then last = call('SET', KEYS[2], text, 'GET') end
    if last and (tonumber(last) or 0) >= now then
      call('SET', KEYS[2], last)
    elseif decides then
      local token = now
      if last then token = math.max(least, last + 1, now - (tokens or 1) + 1) end
      local count, since, ends = now - token + 1, text, num(now + ttl)
      if not lives(now + ttl, e) then call('PEXPIRE', K, num(math.ceil(ttl / 1000) + 1)) end
      call('HDEL', K, '-')
      if count > 1 then since = since .. '-' .. num(count) end
      call('HSET', K, 's0', '1 ' .. channel .. ' ' .. owner .. ' ' .. id .. ' ' .. num(token) .. ' ' .. since .. ' ' .. ends .. '+0',
        'i' .. id, '=0', 'm', plain(ends, '0', '0', text)) -- mutation: redis-swapped
      call('HDEL', K, 'i' .. string.match(old, '%S+'))
      return {'G', text, num(token), '0', num(count)}
    end
  elseif old then
    -- The script grants to the first entry, as a release does. This request becomes the last entry.
    local entries = call('HMGET', K, 'q' .. h, 'q' .. (h + 1 + CLOSE))
    local firstId, firstDeadline, firstChannel, firstTag, firstOwner
    if entries[1] then
      firstId, firstDeadline, firstChannel, firstTag, firstOwner =
        string.match(entries[1], '^(%S+) 1 %d+ (%d+) %d+ ([^%s,]+),?(%S*) (.*)$')
    end
    local token, message = math.max(now, k + 1), nil
    if firstId and now < tonumber(firstDeadline) and token < EXACT then
      token = num(token)
      local mark, accepted = '-0', true
      if firstTag ~= '' then
        accepted = raise(KEYS[2], token)
        mark, message = '-0+', start(firstId, token, firstTag)
      else
        call('HSET', K, 's0', found[1]) -- writes the old value: a full server refuses this, and nothing has changed
      end
      if accepted then
        local first, seq = h + 1, t + 1
        if h == t then first, seq = 1, 1 end
        local ahead = seq - first
        local entryEnds, ends = deadline(ahead), num(now + CONFIRM)
        local keyEnds = math.max(entryEnds, now + CONFIRM)
        if not lives(keyEnds, e) then call('PEXPIRE', K, num(math.ceil((keyEnds - now) / 1000) + 1)) end
        call('HDEL', K, '-')
        local holder = '1 ' .. firstChannel .. ' ' .. firstOwner .. ' ' .. firstId .. ' ' .. token .. ' ' .. text .. ' ' .. ends .. '+0'
        seq = num(seq)
        call('HSET', K, 's0', holder, 'i' .. firstId, mark,
          'q' .. seq, id .. ' 1 ' .. ARGV[2] .. ' ' .. num(entryEnds) .. ' ' .. text .. ' ' .. channel .. (tag ~= '' and ',' .. tag or '') .. ' ' .. owner,
          'i' .. id, seq, 'm', plain(ends, num(first), seq, token))
        local oldRequest = 'i' .. string.match(old, '%S+')
        if seq == h then call('HDEL', K, oldRequest) else call('HDEL', K, oldRequest, 'q' .. h) end
        wake(entries[1], 'w', message)
        wake(entries[2], 'n')
        return {'Q', text, seq, num(ahead), num(interval(ahead) / 1000), num(CONFIRM / 1000), '0 ' .. holder}
      end
    end
  elseif not own and entryNumber == '0' and not again then
    -- One HSET makes a new queue entry. If the first entry is dead, the general path removes it.
    local first = t ~= '0' and call('HGET', K, 'q' .. h)
    local firstDeadline = first and string.match(first, '^%S+ %d+ %d+ (%d+)')
    if t == '0' then h = '1' end
    local seq = num(t + 1)
    local ahead = seq - h
    local ends = deadline(ahead)
    if (t == '0' or firstDeadline and now < tonumber(firstDeadline)) and lives(ends, e) then
      call('HSET', K, 'q' .. seq, id .. ' 1 ' .. ARGV[2] .. ' ' .. num(ends) .. ' ' .. text .. ' ' .. channel .. (tag ~= '' and ',' .. tag or '') .. ' ' .. owner,
        'i' .. id, seq, 'm', plain(e, h, seq, k))
      return {'Q', text, seq, num(ahead), num(interval(ahead) / 1000), num(math.ceil((e - now) / 1000)), '0 ' .. found[1]}
    end
  elseif (own == '-0' or own == '-0+') and (entryNumber ~= '0' or again) then
    -- The first confirmation of this request's grant, which has the last token of the name.
    local holder, since = string.match(found[1], '^1 %S+ %S+ (%S+) ' .. k .. ' (%d+) %d+%+0$')
    if holder == id and seen < tonumber(k) then
      if call('PTTL', K) < ttl / 1000 then call('PEXPIRE', K, num(math.ceil(ttl / 1000) + 1)) else call('HDEL', K, '-') end
      local count = math.max(1, math.min(tonumber(tokens or '1'), now - k + 1))
      local last = num(k + count - 1) -- mutation: redis-reserved
      local had = call('SET', KEYS[2], last, 'GET')
      if not had and count > 1 then
        count, last = 1, k
        call('SET', KEYS[2], k)
      elseif had and (tonumber(had) or 0) > tonumber(last) then
        call('SET', KEYS[2], had)
      end
      if count > 1 then since = since .. '-' .. num(count) end
      local ends = num(now + ttl)
      call('HSET', K, 's0', '1 ' .. channel .. ' ' .. owner .. ' ' .. id .. ' ' .. k .. ' ' .. since .. ' ' .. ends .. '+0',
        'i' .. id, '=0', 'm', plain(ends, h, t, last))
      return {'G', text, k, '0', num(count)}
    end
  end
end

-- include common

limit = tonumber(limit)
counter = KEYS[2]
known.s0, known.m, known['v' .. id], known['i' .. id] = found[1], found[2], found[3], found[4]
load()
local withdrawn = get('v' .. id)
if withdrawn and now <= (tonumber(withdrawn) or broken('v' .. id)) then return {'V', text} end
local late, lateGrant = find(id)
if late and lateGrant.expires <= now and string.find(get('i' .. id) or '', '^%-%d+$') then
  -- The server has stopped before this first confirmation of a promoted client. The grant stands, since
  -- no script has granted to another client.
  lateGrant.expires = now + CONFIRM
  writeGrant(late, lateGrant)
end
sweep()
local ended
if old then
  starting = counter
  local g = released(old, oldSlot, tonumber(oldUntil))
  if g then drop(tonumber(oldSlot), g) else ended = true end
end

-- confirm sets the deadline of this request's grant. first is true for the first confirmation.
-- Until then the client has not seen the token. If the server has lost its data, and its clock is
-- behind the tokens that the client has seen, confirm raises the token above them.
local function confirm(slot, g, first)
  if first then
    if seen >= tonumber(g.token) then
      st.k = math.max(seen, st.k) + 1
      g.token = num(st.k)
    end
    -- The name had no later grant, so the tokens up to the present time are free, as in grant.
    if counter and g.limit == 1 and tokens and tonumber(g.token) == st.k and call('GET', counter) then
      g.tokens = math.max(1, math.min(tonumber(tokens), now - st.k + 1))
      st.k = st.k + g.tokens - 1
    end
    put('i' .. id, '=' .. num(slot))
  end
  -- A repeated confirmation does this, too: the first one may have had no counter.
  local last = g.token + g.tokens - 1
  if counter and (tonumber(call('GET', counter)) or 0) < last then raised = num(last) end
  g.expires, g.channel, g.owner = now + ttl, channel, owner
  keep(g.expires)
  writeGrant(slot, g)
  lower(g.expires)
  promote()
  commit()
  return {ended and 'g' or 'G', text, g.token, num(slot), num(g.tokens)}
end

local own = get('i' .. id)
local granted, g = find(id)
if granted and (own or again) then
  return confirm(granted, g, own and string.sub(own, 1, 1) == '-')
end
if own and not string.find(own, '^%d') then
  put('i' .. id, false) -- its grant has ended
  own = false
end

local function answerEntry(seq)
  local ahead = seq - st.h
  local expiry = -1
  if st.count > 0 then expiry = math.max(0, math.ceil((st.e - now) / 1000)) end
  return {ended and 'q' or 'Q', text, num(seq), num(ahead), num(interval(ahead) / 1000), num(expiry)}
end

local rec = own and get('q' .. own)
if rec then
  -- The call proves that the client lives. So the script refreshes its entry before it removes dead
  -- entries.
  local seq, entry = tonumber(own), parseEntry(rec)
  if entry.id ~= id or not seq or seq < st.h or seq > st.t then broken('i' .. id) end
  entry.deadline, entry.channel, entry.tag, entry.owner = deadline(math.max(0, seq - st.h)), channel, tag, owner
  keep(entry.deadline)
  writeEntry(own, entry)
  local slot = promote(id)
  if slot then return confirm(slot, grantAt(slot), true) end
  commit()
  return answerEntry(seq)
end

promote()
if entryNumber ~= '0' then
  commit()
  return {'X', text}
end

-- If the release has promoted an entry, dead entries behind it stay until the next release.
if (not old or admits(limit)) and (st.t == 0 or not head()) and admits(limit) then
  local token, slot, count = grant(seen, '=', id, limit, ttl, channel, owner, tonumber(tokens))
  commit(true)
  return {ended and 'g' or 'G', text, token, num(slot), count}
end

if not waits then
  local answer = holders({'B', text})
  commit()
  return answer
end
if st.t == 0 then st.h, st.t = 1, 0 end
local seq = st.t + 1
local entry = {id = id, limit = limit, ttl = ttl, deadline = deadline(seq - st.h), since = text, channel = channel, tag = tag, owner = owner}
writeEntry(num(seq), entry)
put('i' .. id, num(seq))
keep(entry.deadline)
st.t = seq
local answer = holders(answerEntry(seq)) -- the server may refuse its reads, so it precedes the writes
commit(true)
return answer
