-- Grants, or takes a place, or says no. A call for a place that stands is its
-- refresh, and grants if its turn has come.
--
-- KEYS[1]  the name
-- KEYS[2]  the bucket's counter of tokens; left out while the slot moves
-- ARGV[1]  who asks: "LIMIT CHANNEL OWNER ID". The channel that wakes it is
--          p:CHANNEL, or - for none
-- ARGV[2]  TTL, microseconds
-- ARGV[3]  TTL, milliseconds, rounded up: the life of the key
-- ARGV[4]  the server's time after which the request is refused
-- ARGV[5]  the highest token the client has seen
-- These are left out by the first call of a request that does not wait:
-- ARGV[6]  1 to wait, 0 to try
-- ARGV[7]  the number of the place that it has, 0 if none
-- ARGV[8]  1 if an earlier call of this request was not answered
--
-- Answers, each but the first followed by the server's time:
--   GTOKEN                          granted, at seat 0; the token is the server's time
--   G TOKEN SEAT                    granted
--   Q SEQ AHEAD REFRESH EXPIRY ...  a place: refresh in so many milliseconds, the
--                                   first grant ends in so many; then the holders
--   B ...                           no; then the holders
--   X                               the place is gone
--   L                               too late
--   V                               the request has been undone, or its grant was taken
--                                   away: its ID is void for a while
local K = KEYS[1]
local time = redis.call('TIME')
local text = time[2]
while #text < 6 do text = '0' .. text end
text = time[1] .. text
local now = tonumber(text)
if now > tonumber(ARGV[4]) then return {'L', text} end

if KEYS[2] and (not ARGV[6] or ARGV[7] == '0' and ARGV[8] == '0') then
  -- Free, as most often. What is done here is done for every lock, so it is little.
  local token, floor = text, tonumber(ARGV[5])
  local last = redis.call('SET', KEYS[2], token, 'GET')
  last = last and tonumber(last) or 0
  if last >= now or floor >= now then
    last = math.max(last, floor) + 1
    token = string.format('%.0f', last)
    if last >= 9007199254740992 then
      redis.call('SET', KEYS[2], string.format('%.0f', last - 1))
      return redis.error_reply('ERR holdfast: tokens of this bucket are used up')
    end
    redis.call('SET', KEYS[2], token)
  end
  if redis.call('SET', K, ARGV[1] .. ' ' .. token .. ' ' .. text .. ' ' .. text .. '+' .. ARGV[2], 'NX', 'PX', ARGV[3]) then
    if token == text then return 'G' .. text end
    return 'G ' .. text .. ' ' .. token .. ' 0'
  end
  if ARGV[6] ~= '1' then
    -- A look at a lone grant leaves it as it is.
    local rec = redis.pcall('GET', K)
    if type(rec) == 'string' then
      local other, at, ttl = string.match(rec, '^(%d+) .* (%d+)%+(%d+)$')
      if other and at + ttl > now and (other == '1' or string.sub(ARGV[1], 1, 2) == '1 ') then return {'B', text, '0 ' .. rec} end
    end
  end
end

-- include common

local limit, channel, owner, id = string.match(ARGV[1], '^(%d+) (%S+) (%S+) (%S+)$')
limit = tonumber(limit)
local ttl = tonumber(ARGV[2])
load()
local was = tonumber(ARGV[7] or '0')
local own = call('HMGET', K, 'v' .. id, 'i' .. id)
if own[1] and now <= tonumber(own[1]) then return {'V', num(now)} end
sweep()

-- confirm sets the deadline of a grant that this request has. Nobody has seen
-- the token of one that is not confirmed: if the server has lost its memory and
-- its clock is behind what the client knows, it is raised above that.
local function confirm(seat, g, first)
  if first then
    local floor = tonumber(ARGV[5])
    if floor >= tonumber(g.token) then
      g.token = num(math.max(floor, st.k) + 1)
      st.k = tonumber(g.token)
      call('HSET', K, 'k', g.token)
    end
    call('HSET', K, 'i' .. id, '=' .. seat)
    if KEYS[2] and (tonumber(call('GET', KEYS[2])) or 0) < tonumber(g.token) then
      call('SET', KEYS[2], g.token)
    end
  end
  g.expires, g.channel, g.owner = now + ttl, channel, owner
  writeGrant(seat, g)
  if st.count == 1 then st.e = g.expires end
  promote()
  save()
  return {'G', num(now), g.token, num(seat)}
end

local function at(seat)
  local rec = call('HGET', K, 's' .. seat)
  local g = rec and parseGrant(rec)
  if g and g.id == id then return g end
end

if own[2] and not tonumber(own[2]) or own[2] and tonumber(own[2]) <= 0 then
  -- It has been granted.
  local seat = string.sub(own[2], 2)
  local g = at(seat)
  if g then
    keep(now + ttl)
    return confirm(tonumber(seat), g, string.sub(own[2], 1, 1) == '-')
  end
  call('HDEL', K, 'i' .. id)
  own[2] = false
end

local function answerPlace(seq)
  local ahead = seq - st.h
  local expiry = st.e and math.max(0, math.ceil((st.e - now) / 1000)) or -1
  return {'Q', num(now), num(seq), num(ahead), num(interval(ahead) / 1000), num(expiry)}
end

local rec = own[2] and call('HGET', K, 'q' .. own[2])
if rec then
  -- It has a place, and is alive: that counts before anyone looks who is not.
  local seq, place = tonumber(own[2]), parsePlace(rec)
  place.deadline, place.channel, place.owner = deadline(math.max(0, seq - st.h)), channel, owner
  keep(place.deadline)
  writePlace(seq, place)
  local seat = promote(id)
  if seat then
    keep(now + ttl)
    return confirm(seat, at(seat), true)
  end
  save()
  return answerPlace(seq)
end

promote()
-- Looking for a grant of this very request is needed only where one may be.
if ARGV[8] == '1' then
  local seat, g = find(id)
  if seat then
    keep(now + ttl)
    return confirm(seat, g, false)
  end
end
if was > 0 then
  save()
  return {'X', num(now)}
end

if not head() and admits(limit) then
  local token, seat = grant(KEYS[2], ARGV[5], id, limit, ttl, channel, owner)
  save()
  return {'G', num(now), token, num(seat)}
end

local answer
if ARGV[6] == '1' then
  if not st.t then st.h, st.t = 1, 0 end
  local seq = st.t + 1
  local place = {id = id, limit = limit, ttl = ttl, deadline = deadline(seq - st.h), since = num(now), channel = channel, owner = owner}
  writePlace(seq, place)
  call('HSET', K, 'i' .. id, seq)
  keep(place.deadline)
  st.t, st.exists = seq, true
  answer = answerPlace(seq)
else
  answer = {'B', num(now)}
end
save()
local shown = 0
seats(function(seat)
  answer[#answer + 1] = num(seat) .. ' ' .. call('HGET', K, 's' .. seat)
  shown = shown + 1
  return shown >= 16
end)
return answer
