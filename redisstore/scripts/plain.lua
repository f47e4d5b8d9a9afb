-- The plain path: the steps of a name under contention. When the client loads a script, this text
-- replaces "-- include plain", before common.
--
-- A name is plain while it has one exclusive grant, in slot 0, no withdrawn request, and no search
-- for expired grants. plainState returns e, h, t and k of such a name, which load in common
-- describes, or nil. Nearly all handoffs of a name under contention find this state. The plain
-- path reads and writes what common would, with fewer commands and without the closures of common.
-- It decides before it writes. If it does not decide, the script continues with common, which
-- handles all states by the same rules.

local call = redis.call

-- Lua's numbers are exact below EXACT, 2^53.
local EXACT = 9007199254740992

-- num returns the text of a whole number. The format %d takes a quarter of the time of %.0f, and has only 32 bits in
-- the builds of the server for 32 bits.
local WHOLE = string.format('%d', EXACT) == '9007199254740992' and '%d' or '%.0f'
local function num(x) return string.format(WHOLE, x) end

-- broken ends the script before its first write, because the hash is not as the scripts write it.
local function broken(what) error('holdfast: broken record 1: ' .. what, 0) end

-- EXCLUSIVE matches the record of an exclusive grant, see common.
local EXCLUSIVE = '^1 %S+ %S+ %S+ %d+ [%d-]+ %d+%+%d+$'

local PLAIN = '^(%d+) 1 0 (%d+) (%d+) (%d+) 0 1 0 0 0 1:1$'
local function plainState(first, m)
  local e, h, t, k = string.match(m, PLAIN)
  if e and t + 0 < EXACT and h + 0 <= t + 0 and string.find(first or '', EXCLUSIVE) then return e, h, t, k end
end
local function plain(e, h, t, k) return e .. ' 1 0 ' .. h .. ' ' .. t .. ' ' .. k .. ' 0 1 0 0 0 1:1' end

-- A client refreshes an entry every NEAR microseconds while at most CLOSE entries are ahead of it.
-- Otherwise the interval is longer by PER for each entry ahead, but at most FAR. An entry is dead
-- 2.9 s after three missed refreshes. So a server that stops for up to four seconds keeps the order: it
-- may promote an entry before it reads the refreshes that came meanwhile. The lease of a promoted entry lasts CONFIRM. If the client has not
-- confirmed its grant by then, the client is dead.
local NEAR, FAR, PER, CONFIRM, CLOSE = 700000, 15000000, 20000, 2500000, 32
local function interval(ahead)
  if ahead <= CLOSE then return NEAR end
  return math.min(FAR, NEAR + ahead * PER)
end
local function deadline(ahead) return now + 3 * interval(ahead) + 2900000 end

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
