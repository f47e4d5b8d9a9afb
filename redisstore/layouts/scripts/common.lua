-- The layouts of other client libraries. A script is this text, then the rules of one layout (plain,
-- lock, fair, ...), then one verb (acquire, renew, ...). The rules define:
--   held()         reports whether the grant of own exists
--   blocked()      returns nil if own may be granted now; otherwise the milliseconds after which
--                  that may change without a release, or -1 if the script cannot compute them
--   grab(token)    writes the grant, as the other clients do
--   extend()       sets the grant's deadline to a full TTL from now
--   drop()         ends the grant, and notifies waiters
--   leave()        removes the queue entry of own
--   holders(add)   calls add(owner, record or '', milliseconds left) for each holder
--
-- KEYS: the name's key, the side key (the key beside it), and the keys of the rules. ARGV:
--   1  the request's ID
--   2  own: the owner as the layout writes it
--   3  TTL, ms
--   4  the time after which the script refuses the request, us
--   5  the highest token that the client has seen
--   6  the owner for people
--   7  the limit
--   8  1 to notify by sharded messages, too
--   9  1 to make a queue entry
--   10 how long a queue entry lasts, ms
--   11 the channel
--   12 the beginning of the keys of single holders
--   13 an argument of the verb
--
-- Only this library uses the side key. It is a hash that expires by itself:
--   last     the token of the last grant
--   h:<own>  a grant: "id token since limit owner"
--   e:<own>  the expiry of a grant, in ms, if the layout has none
--   v:<id>   a request that was rolled back: the time until which it could still arrive, in us
--   b:<own>  a grant that an operator took away: the time until which a request of it could arrive
-- Times are the server's. A script writes the side key first. So if the server refuses a command, it
-- does so before the lock has changed.

local call = redis.call
local N, B = KEYS[1], KEYS[2]
local id, own, ttl, late = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local least, owner, limit = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local channel, stem = ARGV[11], ARGV[12]
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local ms = math.floor(now / 1000)
-- keep is the time for which the side key keeps the last token and a request that was rolled back.
local keep = 10000

local function text(x) return string.format('%.0f', x) end

-- broken ends the script, because another program has written to KEYS[key].
local function broken(key, what) error('holdfast: broken record ' .. key .. ': ' .. what, 0) end

-- number returns a number of the side key. Lua's numbers are exact below 2^53.
local function number(value, what)
  local n = tonumber(value)
  if n and n >= 0 and n < 9007199254740992 then return n end
  broken(2, what)
end

-- publish notifies waiters. A refused message has the effect of a lost one. received is the number of
-- clients that received the last message; in a Cluster it counts sharded subscriptions, which are all at
-- this server.
local received = 0
local function publish(where, message)
  local function send(command) return tonumber(redis.pcall(command, where, message)) or 0 end
  received = send('PUBLISH')
  if ARGV[8] == '1' then received = send('SPUBLISH') end
end

-- live makes the side key exist for at least that time. It always writes. So the server refuses a
-- user without the right here, before the name's key has changed.
local live = function(time) call('PEXPIRE', B, math.max(call('PTTL', B), time)) end

-- touch makes a write that changes no lock. The server refuses a user without the right here, and a
-- full server refuses no command after a write.
local function touch() live(keep) end

-- mint returns a new token.
local function mint()
  return math.max(now, number(call('HGET', B, 'last') or '0', 'last') + 1, least + 1)
end

-- beside writes fields of the side key, and makes it exist for at least that time. If the server refuses that, no new key
-- stays without an expiry.
local function beside(time, ...)
  local new = call('EXISTS', B) == 0
  call('HSET', B, ...)
  local done, refused = pcall(live, time)
  if not done then
    if new then call('DEL', B) end
    error(refused, 0)
  end
end

-- write writes the grant of own to the side key.
local write = function(token)
  beside(math.max(ttl, keep), 'last', text(token), 'h:' .. own, id .. ' ' .. text(token) .. ' ' .. text(now) .. ' ' .. text(limit) .. ' ' .. owner)
end

-- record returns what write has written for an owner, and recorded the token in it.
local function record(of) return call('HGET', B, 'h:' .. of) or '' end

local recorded = function() return string.match(record(own), '^%S+ (%d+) ') end

-- sweep removes the records of requests that can no longer arrive.
local function sweep()
  local all = call('HGETALL', B)
  for i = 1, #all, 2 do
    local kind = string.sub(all[i], 1, 2)
    if (kind == 'v:' or kind == 'b:') and (tonumber(all[i + 1]) or 0) < now then call('HDEL', B, all[i]) end
  end
end

-- refuse records that the scripts must refuse a request of id that still arrives.
local function refuse()
  if late <= now then return end
  if call('HLEN', B) > 100 then sweep() end
  beside(math.ceil((late - now) / 1000), 'v:' .. id, text(late))
end

local held, blocked, grab, extend, drop, holders
local leave = function() end
local begin = function() end

-- forget removes what write has written for own, and for grants that have expired. Without a holder
-- the side key expires after keep.
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
