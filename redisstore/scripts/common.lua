-- What the scripts share. It is put in place of "-- include common" when they
-- are loaded, below what they do first and often without any of this. They set K,
-- the name's key, and now, the server's microseconds.
--
-- A name that one grant holds and nobody waits for is a string, the grant; any
-- other is a hash. Its fields:
--   s<seat>  a grant: "limit channel owner id token since at+ttl", which ends ttl
--            after at
--   L        the grants' limits and how many have each: "1:1", "2147483647:12 3:1"
--   e        no grant expires before this
--   n, f     above the highest seat in use; no seat below f is free
--   k        the last token
--   q<seq>   a place: "id limit ttl deadline since channel owner"
--   i<id>    the place's number; of one that was granted, -seat until its client
--            has confirmed it, then =seat
--   h, t     the first place and the last
--   v<id>    void until then: a request that was undone and may still arrive, or
--            whose grant was taken away
--   x<i>     the void requests in order, from y to z
--   V        when the last of them may be forgotten
-- Times are microseconds of the server's clock. Places are served by number.

local call = redis.call
local function num(x) return string.format('%.0f', x) end

local function parseGrant(rec)
  local limit, channel, owner, id, token, since, at, ttl =
    string.match(rec, '^(%d+) (%S+) (%S+) (%S+) (%d+) (%d+) (%d+)%+(%d+)$')
  return {id = id, token = token, limit = tonumber(limit), expires = at and at + ttl, since = since, channel = channel, owner = owner}
end

local function parsePlace(rec)
  local id, limit, ttl, deadline, since, channel, owner =
    string.match(rec, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return {id = id, limit = tonumber(limit), ttl = tonumber(ttl), deadline = tonumber(deadline), since = since, channel = channel, owner = owner}
end

local function writeGrant(seat, g)
  call('HSET', K, 's' .. seat, num(g.limit) .. ' ' .. g.channel .. ' ' .. g.owner .. ' ' .. g.id .. ' ' .. g.token .. ' ' .. g.since .. ' ' .. num(g.expires) .. '+0')
end

local function writePlace(seq, p)
  call('HSET', K, 'q' .. seq, p.id .. ' ' .. p.limit .. ' ' .. num(p.ttl) .. ' ' .. num(p.deadline) .. ' ' .. p.since .. ' ' .. p.channel .. ' ' .. p.owner)
end

-- widen makes a hash of a lone grant.
local function widen()
  local kind = call('TYPE', K).ok
  if kind ~= 'string' then return end
  local rec = call('GET', K)
  local g = parseGrant(rec)
  if not g.id then error({err = 'WRONGTYPE holdfast: the key ' .. K .. ' holds a string that is no lock'}) end
  local left = call('PTTL', K)
  call('DEL', K)
  call('HSET', K, 's0', rec, 'L', g.limit .. ':1', 'e', num(g.expires), 'n', '1', 'f', '1', 'k', g.token)
  call('PEXPIRE', K, math.max(left, 1))
end

local st
local function load()
  widen()
  local r = call('HMGET', K, 'L', 'e', 'n', 'f', 'h', 't', 'V', 'k')
  st = {count = 0, limits = {}, e = tonumber(r[2]), n = tonumber(r[3]) or 0, f = tonumber(r[4]) or 0,
    h = tonumber(r[5]), t = tonumber(r[6]), V = tonumber(r[7]), k = tonumber(r[8]) or 0, exists = false}
  for limit, count in string.gmatch(r[1] or '', '(%d+):(%d+)') do
    st.limits[tonumber(limit)] = tonumber(count)
    st.count = st.count + tonumber(count)
  end
  st.h0 = st.h
  for i = 1, 8 do st.exists = st.exists or r[i] ~= false end
end

-- keep sees to it that the key lives until then. It comes before what takes
-- memory, which a server without memory then allows to what exists, and so writes also
-- where the key lives longer.
local function keep(untilTime)
  local ms = math.ceil((untilTime - now) / 1000) + 1
  call('PEXPIRE', K, num(math.max(ms, call('PTTL', K))))
end

-- save writes the state back, or removes the key when nothing is left in it.
local function save()
  if st.V and now > st.V then
    local y, z = tonumber(call('HGET', K, 'y')), tonumber(call('HGET', K, 'z'))
    for i = y, z do
      local id = call('HGET', K, 'x' .. i)
      if id then call('HDEL', K, 'x' .. i, 'v' .. id) end
    end
    call('HDEL', K, 'V', 'y', 'z')
    st.V = nil
  end
  if st.count == 0 and not st.t and not st.V then
    call('DEL', K)
    return
  end
  local set, del = {}, {}
  local function put(field, value)
    if value then set[#set + 1] = field; set[#set + 1] = value else del[#del + 1] = field end
  end
  local L
  for limit, count in pairs(st.limits) do
    if count > 0 then L = (L and L .. ' ' or '') .. num(limit) .. ':' .. num(count) end
  end
  local held, queued = st.count > 0, st.t ~= nil
  put('L', L)
  put('e', held and num(st.e))
  put('n', held and num(st.n))
  put('f', held and st.f > 0 and num(st.f))
  put('h', queued and num(st.h))
  put('t', queued and num(st.t))
  if #del > 0 then call('HDEL', K, unpack(del)) end
  if #set > 0 then call('HSET', K, unpack(set)) end
  -- Void IDs alone need not live as long as what was here.
  if not held and not queued then call('PEXPIRE', K, num(math.ceil((st.V - now) / 1000) + 1)) end
end

-- admits is the one rule: a grant of limit n never stands beside more than n-1
-- others.
local function least()
  local l = 2147483648
  for limit, count in pairs(st.limits) do
    if count > 0 and limit < l then l = limit end
  end
  return l
end
local function admits(limit) return st.count < math.min(limit, least()) end

-- publish may fail, for want of the right to: a message that is not sent is like
-- one that is lost, and a script must not end half-way.
local function publish(channel, message)
  if string.sub(channel, 1, 2) == 'p:' then
    redis.pcall('PUBLISH', string.sub(channel, 3), message)
  end
end

-- seats calls f(seat, grant) for each grant; f may drop it.
local function seats(f)
  for from = 0, st.n - 1, 500 do
    local fields = {}
    for i = from, math.min(from + 499, st.n - 1) do fields[#fields + 1] = 's' .. i end
    local recs = call('HMGET', K, unpack(fields))
    for i, rec in ipairs(recs) do
      if rec and f(from + i - 1, parseGrant(rec)) then return end
    end
  end
end

local function drop(seat, g)
  call('HDEL', K, 's' .. seat, 'i' .. g.id)
  st.limits[g.limit] = (st.limits[g.limit] or 1) - 1
  st.count = st.count - 1
  if seat < st.f then st.f = seat end
  if st.count == 0 then
    st.n, st.f, st.e = 0, 0, nil
  else
    while st.n > 0 and call('HEXISTS', K, 's' .. (st.n - 1)) == 0 do st.n = st.n - 1 end
  end
end

-- sweep drops the grants whose time is up.
local function sweep()
  if not st.e or now < st.e then return end
  local first
  local dead = {}
  seats(function(seat, g)
    if g.expires <= now then
      dead[#dead + 1] = {seat, g}
    elseif not first or g.expires < first then
      first = g.expires
    end
  end)
  for i = #dead, 1, -1 do drop(dead[i][1], dead[i][2]) end
  st.e = first
end

-- find looks for a grant by its request.
local function find(id)
  local found, grant
  seats(function(seat, g)
    if g.id == id then
      found, grant = seat, g
      return true
    end
  end)
  return found, grant
end

local function leave(seq, p) call('HDEL', K, 'q' .. seq, 'i' .. p.id) end

-- placeAt is the living place of that number.
local function placeAt(seq)
  local rec = call('HGET', K, 'q' .. seq)
  if not rec then return nil end
  local p = parsePlace(rec)
  if p.deadline > now then return p end
  leave(seq, p)
  return nil
end

-- head is the first living place; the dead before it are removed.
local function head()
  while st.t do
    if st.h > st.t then
      st.h, st.t = nil, nil
      return nil
    end
    local p = placeAt(st.h)
    if p then return p end
    st.h = st.h + 1
  end
end

-- A place near the head is refreshed within NEAR, one further back less often,
-- no less than every FAR; it dies when it has missed three. A place that was
-- granted lasts PATIENCE until its client has confirmed it: else whoever stood
-- there is dead. WINDOW bounds what one call grants to places.
local NEAR, FAR, PER, PATIENCE, WINDOW, CLOSE = 700000, 15000000, 20000, 2500000, 64, 8
local function interval(ahead)
  if ahead <= CLOSE then return NEAR end
  return math.min(FAR, NEAR + ahead * PER)
end
local function deadline(ahead) return now + 3 * interval(ahead) + 400000 end

-- grant makes a holder. counter is the key of the bucket's counter, or nil while
-- the slot moves; floor is the highest token the client knows of.
local function grant(counter, floor, id, limit, ttl, channel, owner)
  local token = math.max(now, st.k + 1, tonumber(floor) + 1)
  if counter then token = math.max(token, (tonumber(call('GET', counter)) or 0) + 1) end
  if token >= 9007199254740992 then error({err = 'ERR holdfast: tokens of this bucket are used up'}) end
  local seat = 0
  if st.count > 0 then
    seat = st.f
    while call('HEXISTS', K, 's' .. seat) == 1 do seat = seat + 1 end
  end
  local text = num(token)
  if st.exists then keep(now + ttl) end
  if counter then call('SET', counter, text) end
  writeGrant(seat, {limit = limit, channel = channel, owner = owner, id = id, token = text, since = num(now), expires = now + ttl})
  call('HSET', K, 'k', text)
  if not st.exists then call('PEXPIRE', K, num(math.ceil(ttl / 1000) + 1)) end
  st.k, st.exists = token, true
  st.limits[limit] = (st.limits[limit] or 0) + 1
  st.count = st.count + 1
  st.f = seat + 1
  if seat >= st.n then st.n = seat + 1 end
  if not st.e or now + ttl < st.e then st.e = now + ttl end
  return text, seat
end

-- approach tells the places that have come close to the head, one as a rule, several
-- where those before them have gone.
local function approach()
  if not st.t or not st.h0 or st.h <= st.h0 then return end
  for seq = math.max(st.h0 + CLOSE + 1, st.h), math.min(st.h + CLOSE, st.t) do
    local rec = call('HGET', K, 'q' .. seq)
    if rec then
      local p = parsePlace(rec)
      publish(p.channel, 'n' .. p.id)
    end
  end
  st.h0 = st.h
end

-- promote grants to those at the head, in order, as far as the rule allows, and
-- tells them. It needs no counter: the name's key has lived since its last grant
-- and knows the token; the counter is raised when the client confirms.
local function promote(mine)
  local told, seat = 0, nil
  while told < WINDOW do
    local p = head()
    if not p or not admits(p.limit) then break end
    leave(st.h, p)
    st.h = st.h + 1
    local _, to = grant(nil, 0, p.id, p.limit, PATIENCE, p.channel, p.owner)
    call('HSET', K, 'i' .. p.id, '-' .. to)
    if p.id == mine then seat = to else publish(p.channel, 'w' .. p.id) end
    told = told + 1
  end
  head()
  approach()
  return seat
end

-- purge removes whatever an ID has here.
local function purge(id)
  local at = call('HGET', K, 'i' .. id)
  if at and tonumber(at) and tonumber(at) > 0 then call('HDEL', K, 'q' .. at, 'i' .. id) end
  local again
  repeat
    local seat, g = find(id)
    again = seat ~= nil
    if again then drop(seat, g) end
  until not again
end

-- void makes sure that a request that is still on its way is not granted: the
-- clients send a time with each request after which it is refused.
local function void(id, untilTime)
  if untilTime <= now then return end
  local y, z = tonumber(call('HGET', K, 'y')) or 1, tonumber(call('HGET', K, 'z')) or 0
  for _ = 1, 2 do
    if y > z then break end
    local old = call('HGET', K, 'x' .. y)
    local till = old and tonumber(call('HGET', K, 'v' .. old))
    if till and till >= now then break end
    call('HDEL', K, 'x' .. y, old and 'v' .. old or 'x' .. y)
    y = y + 1
  end
  z = z + 1
  if st.exists then keep(untilTime) end
  st.V = math.max(st.V or 0, untilTime)
  call('HSET', K, 'v' .. id, num(untilTime), 'x' .. z, id, 'y', num(y), 'z', num(z), 'V', num(st.V))
  if not st.exists then call('PEXPIRE', K, num(math.ceil((untilTime - now) / 1000) + 1)) end
  st.exists = true
end
