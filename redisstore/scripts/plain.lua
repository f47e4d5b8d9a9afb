-- The plain way of the steps of a contended name. It replaces "-- include plain" when
-- the scripts are loaded, ahead of common.
--
-- A name is plain while one exclusive grant stands in slot 0, no withdrawn request is
-- remembered, and no search for expired grants is under way. PLAIN matches its state and
-- returns e, h, t and k, as load in common describes them. Nearly all handovers of a name
-- that many clients want find it so. The plain way reads and writes what common would,
-- with fewer commands and without its closures. It takes its decision before it writes;
-- whatever it does not decide continues to common, which has the same rules for all states.

local call = redis.call
local function num(x) return string.format('%.0f', x) end

local PLAIN = '^(%d+) 1 0 (%d+) (%d+) (%d+) 0 1 0 0 0 1:1$'
local function plain(e, h, t, k) return e .. ' 1 0 ' .. h .. ' ' .. t .. ' ' .. k .. ' 0 1 0 0 0 1:1' end

-- An entry near the head is refreshed every NEAR, one further back less often, at least
-- every FAR; it is dead when it has missed three. A promoted entry's lease lasts CONFIRM
-- until its client has confirmed the grant: otherwise the client is dead.
local NEAR, FAR, PER, CONFIRM, CLOSE = 700000, 15000000, 20000, 2500000, 32
local function interval(ahead)
  if ahead <= CLOSE then return NEAR end
  return math.min(FAR, NEAR + ahead * PER)
end
local function deadline(ahead) return now + 3 * interval(ahead) + 400000 end

-- lives reports whether the key lives until then: as long as its grant, at least.
local function lives(untilTime, e) return untilTime <= tonumber(e) or call('PTTL', K) >= (untilTime - now) / 1000 end

-- raise records a token in the bucket's counter, so that the token may be used before its
-- grant is confirmed. It reports whether the server has accepted that. A counter that was
-- raised in vain does no harm.
local function raise(counter, token)
  local had = redis.pcall('SET', counter, token, 'GET')
  if type(had) == 'table' then return false end
  if had and (tonumber(had) or 0) > tonumber(token) then call('SET', counter, had) end
  return true
end

-- start is the message by which a waiter may start before it confirms its grant.
local function start(id, token, tag) return 'g' .. id .. ' ' .. token .. ' ' .. num(CONFIRM) .. ' ' .. tag end
