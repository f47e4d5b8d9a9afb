-- The plain path: the steps of a name under contention. When the client loads a script, this text
-- replaces "-- include plain", before common.
--
-- A name is plain while it has one exclusive grant, in slot 0, no withdrawn request, and no search
-- for expired grants. PLAIN matches the state of such a name and captures e, h, t and k, which load
-- in common describes. Nearly all handoffs of a name under contention find this state. The plain
-- path reads and writes what common would, with fewer commands and without the closures of common.
-- It decides before it writes. If it does not decide, the script continues with common, which
-- handles all states by the same rules.

local call = redis.call
local function num(x) return string.format('%.0f', x) end

-- Lua's numbers are exact below EXACT, 2^53.
local EXACT = 9007199254740992

local PLAIN = '^(%d+) 1 0 (%d+) (%d+) (%d+) 0 1 0 0 0 1:1$'
local function plain(e, h, t, k) return e .. ' 1 0 ' .. h .. ' ' .. t .. ' ' .. k .. ' 0 1 0 0 0 1:1' end

-- A client refreshes an entry every NEAR microseconds while at most CLOSE entries are ahead of it.
-- Otherwise the interval is longer by PER for each entry ahead, but at most FAR. An entry that has
-- missed three refreshes is dead. The lease of a promoted entry lasts CONFIRM. If the client has not
-- confirmed its grant by then, the client is dead.
local NEAR, FAR, PER, CONFIRM, CLOSE = 700000, 15000000, 20000, 2500000, 32
local function interval(ahead)
  if ahead <= CLOSE then return NEAR end
  return math.min(FAR, NEAR + ahead * PER)
end
local function deadline(ahead) return now + 3 * interval(ahead) + 400000 end

-- lives reports whether the key exists until then. It exists at least until its grant expires, at e.
local function lives(untilTime, e) return untilTime <= tonumber(e) or call('PTTL', K) >= (untilTime - now) / 1000 end

-- raise writes a token to the bucket's counter, so that a client may use the token before it
-- confirms the grant. It reports whether the server has accepted the write. raise may raise the
-- counter in vain, which does no harm.
local function raise(counter, token)
  local had = redis.pcall('SET', counter, token, 'GET')
  if type(had) == 'table' then return false end
  if had and (tonumber(had) or 0) > tonumber(token) then call('SET', counter, had) end
  return true
end

-- start returns the message after which a waiter may start before it confirms its grant.
local function start(id, token, tag) return 'g' .. id .. ' ' .. token .. ' ' .. num(CONFIRM) .. ' ' .. tag end

-- wake publishes to the client of an entry, if it has a channel: message, or the letter and the ID.
local function wake(entry, letter, message)
  local id, channel = string.match(entry or '', '^(%S+) %d+ %d+ %d+ %d+ p:([^%s,]+)')
  if id then redis.pcall('PUBLISH', channel, message or letter .. id) end
end
