-- The layouts of other clients: a script is this prelude, then the rules of one layout
-- (plain, lock, fair, ...), then one verb (acquire, renew, ...). The rules define:
--   held()         whether the grant of own stands
--   blocked()      nil if own may be granted now; else the ms after which that may change
--                  without a release, -1 if the script cannot compute them
--   grab(token)    writes the grant down, as the other clients do
--   extend()       sets its deadline to a full TTL
--   drop()         ends it, and notifies waiters
--   leave()        removes the queue entry of own
--   stored()       the value of the name's key, if the client compares it
--   holders(add)   calls add(own, record or '', ms left) for each holder
--
-- KEYS: the name's key, the key beside it, and what the rules name.
-- ARGV: 1 request ID, 2 own: the owner as the layout writes it, 3 TTL in ms, 4 until when
-- the request may be applied, in us, 5 the least token, 6 owner for people, 7 limit,
-- 8 "1": notify by sharded messages too, 9 "1": take a queue entry, 10 how long an entry
-- stands in ms, 11 the channel, 12 what keys of single holders begin with.
--
-- The key beside the name's is ours alone. It is a hash, and expires by itself:
--   last     the token of the last grant
--   h:<own>  a grant: "id token since limit owner"
--   e:<own>  when it expires, in ms, where the layout has no such thing
--   v:<id>   a request that was rolled back: until when it could still arrive, in us
--   b:<own>  a grant that an operator took away: until when a request of it could arrive
-- Times are the server's. A script writes this key first: a command that the server
-- refuses is refused before the lock has changed.

local call = redis.call
local N, B = KEYS[1], KEYS[2]
local id, own, ttl, late = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local least, owner, limit = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local channel, stem = ARGV[11], ARGV[12]
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local ms = math.floor(now / 1000)
-- keep is for how long the last token, and a request that was rolled back, are remembered.
local keep = 10000

local function text(x) return string.format('%.0f', x) end

-- publish notifies. A message that is refused is like one that is lost.
local function publish(where, message)
  if ARGV[8] == '1' then redis.pcall('SPUBLISH', where, message) end
  redis.pcall('PUBLISH', where, message)
end

-- live has the key beside live that long, at least. It always writes: a user without the
-- right is refused here, before the name's key has changed.
local live = function(time) call('PEXPIRE', B, math.max(call('PTTL', B), time)) end

-- touch writes and changes nothing: a user without the right is refused here, and a full
-- server refuses no command behind a write.
local function touch() live(keep) end

local function mint()
  return math.max(now, (tonumber(call('HGET', B, 'last') or '') or 0) + 1, least + 1)
end

-- write remembers the grant of own beside the name.
local write = function(token)
  call('HSET', B, 'last', text(token), 'h:' .. own, id .. ' ' .. text(token) .. ' ' .. text(now) .. ' ' .. text(limit) .. ' ' .. owner)
  live(math.max(ttl, keep))
end

local function record(of) return call('HGET', B, 'h:' .. of) or '' end

local recorded = function() return string.match(record(own), '^%S+ (%d+) ') end

-- sweep removes what is remembered of requests that can no longer arrive.
local function sweep()
  local all = call('HGETALL', B)
  for i = 1, #all, 2 do
    local kind = string.sub(all[i], 1, 2)
    if (kind == 'v:' or kind == 'b:') and tonumber(all[i + 1]) < now then call('HDEL', B, all[i]) end
  end
end

-- refuse has a request of id refused that still arrives.
local function refuse()
  if late <= now then return end
  if call('HLEN', B) > 100 then sweep() end
  call('HSET', B, 'v:' .. id, text(late))
  live(math.ceil((late - now) / 1000))
end

local held, blocked, grab, extend, drop, holders
local leave = function() end
local stored = function() end
local begin = function() end

-- forget removes what write has written, and what it has written for grants that have
-- expired. Without a holder the key beside is needed a while only.
local forget = function()
  call('HDEL', B, 'h:' .. own, 'e:' .. own)
  local left = call('HLEN', B)
  if left == 0 then return end
  local stands, any = {}, false
  if left > 1 then
    holders(function(of) stands['h:' .. of] = of ~= own end)
    for _, field in ipairs(call('HKEYS', B)) do
      if stands[field] then
        any = true
      elseif string.sub(field, 1, 2) == 'h:' then
        call('HDEL', B, field)
      end
    end
  end
  if not any then call('PEXPIRE', B, keep) end
end
