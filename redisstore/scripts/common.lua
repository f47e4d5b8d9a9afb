-- The functions that the scripts share. When the client loads a script, this text replaces
-- "-- include common". It needs plain before it. The script sets K, the name's key, and now, the
-- server's time in microseconds.
--
-- A name is a hash from its first grant on. Its fields:
--   s<slot>  a grant: "limit channel owner id token since at+ttl". It expires ttl after at. A grant
--            with n tokens, from token on, has "since-n" in place of since. Field s0 exists as long
--            as the key, and is empty while slot 0 is free. So HSET of s0 grants a name that has
--            no key.
--   m        the state: see load. It is missing while the name has one grant, in slot 0, and no
--            other state. Such a grant is called lone.
--   r<i>     free slots: a stack of F entries (see load). An entry may be out of date, so a script
--            checks the slot before it uses it.
--   q<seq>   a queue entry: "id limit ttl deadline since channel owner", or
--            "... channel,tag owner" if its client may start before it confirms the grant
--   i<id>    a request: the number of its queue entry, or -slot if it has a grant, or =slot if its
--            client has confirmed the grant. It is -slot+ instead of -slot if the client may have
--            started. A lone grant has no such field.
--   v<id>    a withdrawn request: the time until which it may still arrive. The request was rolled
--            back, or its grant was taken away.
--   x<i>     the IDs of the withdrawn requests, in order
-- Times are microseconds of the server's clock. The scripts serve entries in the order of their
-- numbers.
--
-- A script reads first and writes last, in commit. Redis does not roll a script back. So commit
-- first tries everything that the server can refuse, and then changes the hash by one HSET.

local function parseGrant(rec)
  local limit, channel, owner, id, token, since, tokens, at, ttl =
    string.match(rec, '^(%d+) (%S+) (%S+) (%S+) (%d+) (%d+)%-?(%d*) (%d+)%+(%d+)$')
  if not limit or at + ttl >= EXACT or tonumber(token) >= EXACT then broken('a grant') end
  return {id = id, token = token, tokens = tonumber(tokens) or 1, limit = tonumber(limit), expires = at + ttl, since = since, channel = channel, owner = owner}
end

local function parseEntry(rec)
  local id, limit, ttl, deadline, since, channel, tag, owner =
    string.match(rec, '^(%S+) (%d+) (%d+) (%d+) (%d+) ([^%s,]+),?(%S*) (.*)$')
  if not id or ttl + deadline >= EXACT then broken('a queue entry') end
  return {id = id, limit = tonumber(limit), ttl = tonumber(ttl), deadline = tonumber(deadline), since = since, channel = channel, tag = tag, owner = owner}
end

-- known has the fields that were read, and pending those to write. The value false means that the
-- field is missing, or is to be removed.
local known, pending = {}, {}

local function read(fields)
  local values = call('HMGET', K, unpack(fields))
  for i, field in ipairs(fields) do known[field] = values[i] end
end

local function get(field)
  local value = pending[field]
  if value ~= nil then return value end
  value = known[field]
  if value == nil then
    value = call('HGET', K, field)
    known[field] = value
  end
  return value
end

local function put(field, value) pending[field] = value end

-- life is the time until which the key must exist. counter is the key of the bucket's counter of
-- tokens, and raised is its new value. starting is the same key, if a promoted waiter may start
-- before it confirms its grant. messages has the channels and messages to publish.
local life, counter, raised, starting = 0, nil, nil, nil
local messages = {}

-- ABOVE_LIMITS is above each limit.
local ABOVE_LIMITS = 2147483648

local st
-- load reads the given fields and the state. The fields of the state:
--   e  no grant expires before this time; 0 if there is no grant
--   n  a number above the highest slot in use
--   F  the number of free slots on the stack
--   h  the number of the first queue entry; 0 if there is none
--   t  the number of the last queue entry; 0 if there is none
--   k  the last token
--   V  the time after which all withdrawn requests may be forgotten; 0 if there is none
--   y  the number of the first withdrawn request
--   z  the number of the last withdrawn request
--   c  the slot at which the search for expired grants continues; 0 if no search is under way
--   d  the earliest expiry that this search has found
-- After these the state has the number of grants of each limit: "1:1", "2147483647:12 3:1".
-- load ends the script if the state is not one that commit writes. So the fields of the hash limit
-- the steps of all loops, also if another program has written the state.
local function load(fields)
  if fields then read(fields) end
  local first, m, length = get('s0'), get('m'), call('HLEN', K)
  st = {count = 0, limits = {}, least = ABOVE_LIMITS, e = 0, n = 0, F = 0, h = 0, t = 0, k = 0, V = 0, y = 1, z = 0, c = 0, d = 0, exists = first ~= false}
  if m then
    local e, n, F, h, t, k, V, y, z, c, d, limits =
      string.match(m, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
    if not e then broken('the state') end
    st.e, st.n, st.F, st.h, st.t, st.k = tonumber(e), tonumber(n), tonumber(F), tonumber(h), tonumber(t), tonumber(k)
    st.V, st.y, st.z, st.c, st.d = tonumber(V), tonumber(y), tonumber(z), tonumber(c), tonumber(d)
    for limit, count in string.gmatch(limits, '(%d+):(%d+)') do
      limit, count = tonumber(limit), tonumber(count)
      if limit == 0 or st.limits[limit] then broken('the limits') end
      st.limits[limit] = count
      st.count = st.count + count
      if limit < st.least then st.least = limit end
    end
    if string.gsub(limits, ' %d+:%d+', '') ~= '' or math.max(st.e, st.h, st.k, st.V, st.z, st.d) > EXACT or st.t >= EXACT
      or math.max(st.count, st.F, st.z - st.y + 1) > length or st.n > st.count + st.F
      or not first or st.count == 0 and first ~= '' then
      broken('the state')
    end
  elseif first then
    if length > 1 then broken('there is no state') end
    local g = parseGrant(first)
    st.lone = g
    st.limits[g.limit], st.count, st.least = 1, 1, g.limit
    st.e, st.n, st.k = g.expires, 1, g.token + g.tokens - 1
  end
  if length > 0 and not first then broken('there is no s0') end
  st.h0 = st.h
end

-- keep makes the key exist at least until then.
local function keep(untilTime) if untilTime > life then life = untilTime end end

-- expire sets the key's time to live.
local function expire(untilTime) return call('PEXPIRE', K, num(math.ceil((untilTime - now) / 1000) + 1)) end

-- forget removes withdrawn requests that can no longer arrive, at most 200 in a call.
local function forget()
  if st.V == 0 or now <= st.V then return end
  local last = math.min(st.z, st.y + 199)
  local fields = {}
  for i = st.y, last do fields[#fields + 1] = 'x' .. i end
  if #fields > 0 then read(fields) end
  for i = st.y, last do
    local id = get('x' .. i)
    put('x' .. i, false)
    if id then put('v' .. id, false) end
  end
  st.y = last + 1
  if st.y > st.z then st.V, st.y, st.z = 0, 1, 0 end
  st.changed = true
end

-- commit writes what has changed, or removes the key if nothing remains. If new is set, a full
-- server refuses the first write, and with it the new request. Otherwise a command that needs no
-- memory comes first, and after it a full server refuses nothing. PEXPIRE of a missing key and HDEL
-- of a missing field change nothing, but the server refuses them like any other. So they try the
-- rights of the user.
local function commit(new)
  forget()
  if st.count == 0 and st.t == 0 and st.V < now then
    if st.exists then call('DEL', K) end
  elseif st.changed or next(pending) ~= nil then
    if st.lone and st.lone.id ~= '*' and pending['i' .. st.lone.id] == nil then put('i' .. st.lone.id, '=0') end
    if not st.exists and pending['s0'] == nil then put('s0', '') end
    local limits = ''
    for limit, count in pairs(st.limits) do
      if count > 0 then limits = limits .. ' ' .. num(limit) .. ':' .. num(count) end
    end
    put('m', string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
      st.e, st.n, st.F, st.h, st.t, st.k, st.V, st.y, st.z, st.c, st.d) .. limits)
    local set, del = {}, {}
    for field, value in pairs(pending) do
      if value then set[#set + 1] = field; set[#set + 1] = value else del[#del + 1] = field end
    end
    local idle = st.count == 0 and st.t == 0 -- only withdrawn requests remain
    if idle then life = st.V end
    local extend = life > 0 and (idle or not st.exists or call('PTTL', K) < (life - now) / 1000)
    if new then
      if raised then
        call('SET', counter, raised)
      elseif st.exists then
        call('HSET', K, 's0', known.s0) -- the old value -- mutation: redis-tried
      end
    end
    if st.exists or raised or not new then
      if extend then expire(life) end
      if #del > 0 or not extend then call('HDEL', K, '-') end
    end
    if raised and not new then call('SET', counter, raised) end
    call('HSET', K, unpack(set)) -- mutation: redis-contended
    -- In parts, because Lua's stack is limited, and thousands of entries may have died together.
    for i = 1, #del, 4000 do call('HDEL', K, unpack(del, i, math.min(i + 3999, #del))) end
    if not st.exists then
      local done = redis.pcall('PEXPIRE', K, num(math.ceil((life - now) / 1000) + 1))
      if type(done) == 'table' then
        call('DEL', K)
        error(done)
      end
    end
  end
  -- The server may refuse PUBLISH. That has the effect of a lost message.
  for i = 1, #messages, 2 do redis.pcall('PUBLISH', messages[i], messages[i + 1]) end
end

-- publish makes commit publish a message, if the channel is one: see ARGV[1] of acquire.
local function publish(channel, message)
  if string.sub(channel, 1, 2) == 'p:' then
    messages[#messages + 1] = string.sub(channel, 3)
    messages[#messages + 1] = message
  end
end

-- admits reports whether the limits allow one more grant: a grant of limit n never exists beside
-- more than n-1 others.
local function admits(limit) return st.count < limit and st.count < st.least end

-- grantAt returns the grant in a slot, or nil.
local function grantAt(slot)
  local rec = get('s' .. slot)
  if rec and rec ~= '' then
    local g = parseGrant(rec)
    if tonumber(slot) >= st.n or (st.limits[g.limit] or 0) == 0 then broken('s' .. slot) end
    return g
  end
end

local function writeGrant(slot, g)
  local since = g.since
  if (g.tokens or 1) > 1 then since = since .. '-' .. num(g.tokens) end
  put('s' .. slot, num(g.limit) .. ' ' .. g.channel .. ' ' .. g.owner .. ' ' .. g.id .. ' ' .. g.token .. ' ' .. since .. ' ' .. num(g.expires) .. '+0')
end

local function writeEntry(seq, p)
  local channel = p.channel
  if p.tag and p.tag ~= '' then channel = channel .. ',' .. p.tag end
  put('q' .. seq, p.id .. ' ' .. p.limit .. ' ' .. num(p.ttl) .. ' ' .. num(p.deadline) .. ' ' .. p.since .. ' ' .. channel .. ' ' .. p.owner)
end

-- lower updates the earliest expiry with that of a grant.
local function lower(expires)
  if st.count == 1 or expires < st.e then st.e = expires end
  if st.c > 0 and expires < st.d then st.d = expires end
  st.changed = true
end

-- drop removes a grant.
local function drop(slot, g)
  put('s' .. slot, slot == 0 and '')
  if st.lone then st.lone = nil elseif g.id ~= '*' then put('i' .. g.id, false) end
  st.limits[g.limit] = st.limits[g.limit] - 1
  st.count = st.count - 1
  if st.limits[g.limit] == 0 and g.limit == st.least then
    st.least = ABOVE_LIMITS
    for limit, count in pairs(st.limits) do
      if count > 0 and limit < st.least then st.least = limit end
    end
  end
  if st.count == 0 then
    st.n, st.F, st.e, st.c, st.d = 0, 0, 0, 0, 0
  else
    st.F = st.F + 1
    put('r' .. num(st.F), num(slot))
  end
  st.changed = true
end

-- sweep drops expired grants. A call reads at most SWEEP slots, so that thousands of grants do not
-- block the server. st.e stays in the past until the search has read all slots.
local SWEEP = 256
local function sweep()
  if st.count == 0 or now < st.e then return end
  if st.n > 1 then
    local fields = {}
    for slot = st.c, math.min(st.c + SWEEP, st.n) - 1 do fields[#fields + 1] = 's' .. slot end
    read(fields)
  end
  local first = st.d
  if st.c == 0 then first = EXACT end
  local last = math.min(st.c + SWEEP, st.n) - 1
  for slot = st.c, last do
    local g = grantAt(slot)
    if g and g.expires <= now then
      drop(slot, g)
    elseif g and g.expires < first then
      first = g.expires
    end
  end
  if st.count == 0 then return end
  if last + 1 >= st.n then
    st.e, st.c, st.d = first, 0, 0
  else
    st.c, st.d = last + 1, first
  end
  st.changed = true
end

-- find returns the slot and the grant of a request, or nil.
local function find(id)
  if st.lone then
    if st.lone.id == id then return 0, st.lone end
    return nil
  end
  local slot = string.match(get('i' .. id) or '', '^[-=](%d+)%+?$')
  local g = slot and grantAt(slot)
  if g and g.id == id then return tonumber(slot), g end
end

-- leave removes a queue entry.
local function leave(seq, p)
  put('q' .. seq, false)
  put('i' .. p.id, false)
  st.changed = true
end

-- GAP limits the numbers without an entry that a call tries one by one. Then it reads the numbers of
-- all entries into order, the last one first. So its steps do not depend on the numbers.
local GAP = 64
local tried, order = 0, nil

-- nextNumber returns a number above st.h: no entry has a number between the two.
local function nextNumber()
  if not order and tried < GAP then
    tried = tried + 1
    return st.h + 1
  end
  if not order then
    order = {}
    for _, field in ipairs(call('HKEYS', K)) do
      local seq = tonumber(string.match(field, '^q(%d+)$') or nil)
      if seq and seq <= st.t then order[#order + 1] = seq end
    end
    table.sort(order, function(a, b) return a > b end)
  end
  while #order > 0 do
    local seq = table.remove(order)
    if seq > st.h then return seq end
  end
  return st.t + 1
end

-- head returns the first queue entry that is alive, or nil, and removes the dead entries before it.
local function head()
  while st.t > 0 do
    if st.h > st.t then
      st.h, st.t = 0, 0
      return nil
    end
    local seq = num(st.h)
    local rec = get('q' .. seq)
    if rec then
      local p = parseEntry(rec)
      if p.deadline > now then return p end -- mutation: redis-sweep
      leave(seq, p)
      st.h = st.h + 1
    else
      st.h = nextNumber()
    end
    st.changed = true
  end
end

-- WINDOW limits the number of entries that one call promotes.
local WINDOW = 64

-- freeSlot takes a free slot and returns it. The slot of a permit is below its limit.
local function freeSlot(limit)
  if st.count == 0 then
    st.n = 1
    return 0
  end
  while st.F > 0 do
    local slot = tonumber(get('r' .. num(st.F)) or nil)
    if slot and slot < st.n and not grantAt(slot) then
      if slot < limit then
        st.F = st.F - 1
        return slot
      end
      for other = 0, limit - 1 do
        if not grantAt(other) then return other end
      end
    end
    st.F = st.F - 1
  end
  st.n = st.n + 1
  return st.n - 1
end

-- checkSlot ends the script if the state does not count a grant that excludes the new one: if the slot
-- is taken, an exclusive grant stands in slot 0, or any grant stands beside a new exclusive one. A permit
-- is in a slot below its limit, so there are never more permits than slots.
local function checkSlot(slot, limit)
  local first = get('s0') or ''
  if slot >= limit or (get('s' .. slot) or '') ~= '' or string.sub(first, 1, 2) == '1 ' then broken('s' .. slot) end
  if limit > 1 or not st.exists then return end
  for _, field in ipairs(call('HKEYS', K)) do
    if string.sub(field, 1, 1) == 's' and (get(field) or '') ~= '' then broken(field) end
  end
end

-- grant writes a grant, and returns its first token, its slot and its number of tokens. seen is the
-- highest token that the client has seen. mark is - if the client must still confirm the grant, and
-- = if it need not. tokens is the requested number. Several tokens are the microseconds since the
-- last token, so that no token is ahead of the clock. If less time has passed, there are fewer. If
-- the counter is missing, the server may have lost its data just now, and there is one token.
local function grant(seen, mark, id, limit, ttl, channel, owner, tokens)
  local least = math.max(st.k + 1, tonumber(seen) + 1)
  local token, count = math.max(now, least), 1
  if counter and mark == '=' then
    local last = tonumber(call('GET', counter))
    least = math.max(least, (last or 0) + 1)
    token = math.max(now, least)
    if last and limit == 1 and tokens then
      token = math.max(least, now - tokens + 1)
      count = math.max(1, now - token + 1)
    end
  end
  if token >= EXACT then error({err = 'ERR holdfast: tokens of this bucket are used up'}) end
  local slot = freeSlot(limit)
  checkSlot(slot, limit)
  local text = num(token)
  if counter and mark == '=' then raised = num(token + count - 1) end
  keep(now + ttl)
  writeGrant(slot, {limit = limit, channel = channel, owner = owner, id = id, token = text, tokens = count, since = num(now), expires = now + ttl})
  put('i' .. id, mark .. num(slot))
  st.k = token + count - 1
  st.limits[limit] = (st.limits[limit] or 0) + 1
  st.count = st.count + 1
  if limit < st.least then st.least = limit end
  lower(now + ttl)
  return text, slot, num(count)
end

-- approach notifies the entries that have come near the head: usually one, and several if entries
-- before them have left.
local function approach()
  if st.t == 0 or st.h0 == 0 or st.h <= st.h0 then return end
  for seq = math.max(st.h0 + CLOSE + 1, st.h), math.min(st.h + CLOSE, st.t) do
    local rec = get('q' .. num(seq))
    if rec then
      local p = parseEntry(rec)
      publish(p.channel, 'n' .. p.id)
    end
  end
  st.h0 = st.h
end

-- promote grants to the entries at the head, in order, as far as the limits allow, and notifies
-- their clients. If it grants to the request mine, it does not notify, and returns the slot. promote
-- needs no counter: the name's key has existed since its last grant, and has the last token. The
-- counter is raised when the client confirms its grant, or before a message lets the client start.
local function promote(mine)
  local slot
  for _ = 1, WINDOW do
    if st.t == 0 or st.count >= st.least then break end
    local p = head()
    if not p or not admits(p.limit) then break end
    put('q' .. num(st.h), false)
    st.h = st.h + 1
    local token, to = grant(0, '-', p.id, p.limit, CONFIRM, p.channel, p.owner)
    if p.id == mine then
      slot = to
    elseif starting and p.tag ~= '' and p.limit == 1 and raise(starting, token) then
      put('i' .. p.id, '-' .. num(to) .. '+')
      publish(p.channel, start(p.id, token, p.tag))
    else
      publish(p.channel, 'w' .. p.id)
    end
  end
  if st.t > 0 and st.h > st.t then st.h, st.t = 0, 0 end
  approach()
  return slot
end

-- purge removes the grant or the queue entry of a request.
local function purge(id)
  local slot, g = find(id)
  if slot then
    drop(slot, g)
    return
  end
  local seq = get('i' .. id)
  if seq then
    local rec = string.find(seq, '^%d+$') and get('q' .. seq)
    if rec and parseEntry(rec).id ~= id then broken('i' .. id) end
    put('i' .. id, false)
    if tonumber(seq) and tonumber(seq) > 0 then put('q' .. seq, false) end
    st.changed = true
  end
end

-- withdraw makes the scripts refuse a request that may still arrive, until untilTime. Each request
-- carries the time after which the scripts refuse it anyway.
local function withdraw(id, untilTime)
  if untilTime <= now then return end
  for _ = 1, 2 do
    if st.y > st.z then break end
    local old = get('x' .. num(st.y))
    local till = old and tonumber(get('v' .. old) or nil)
    if till and till >= now then break end
    put('x' .. num(st.y), false)
    if old then put('v' .. old, false) end
    st.y = st.y + 1
  end
  st.z = st.z + 1
  if untilTime > st.V then st.V = untilTime end
  keep(untilTime)
  put('v' .. id, num(untilTime))
  put('x' .. num(st.z), id)
  st.changed = true
end

-- released returns the grant that a release names, " ID TOKEN ", or nil if it has ended. It then
-- removes what the request may have left. refuseUntil is the time until which the request may
-- arrive, or 0.
local function released(mine, slot, refuseUntil)
  local rec, id = get('s' .. slot), string.match(mine, '%S+')
  local g = rec and string.find(rec, mine, 1, true) and grantAt(slot)
  if not g then
    local seq = get('i' .. id)
    -- A failover may have lost the grant, and not its queue entry.
    if refuseUntil > 0 or seq and string.find(seq, '^%d') then purge(id) end
  end
  if refuseUntil > 0 then withdraw(id, refuseUntil) end
  return g
end

-- holders appends the first grants to an answer, at most 16.
local function holders(answer)
  local shown = 0
  for slot = 0, math.min(st.n, 64) - 1 do
    local rec = get('s' .. slot)
    if rec and rec ~= '' then
      answer[#answer + 1] = num(slot) .. ' ' .. rec
      shown = shown + 1
      if shown >= 16 then break end
    end
  end
  return answer
end
