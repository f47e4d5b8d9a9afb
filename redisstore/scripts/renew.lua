-- Sets a new deadline for a grant.
--
-- KEYS[1]  the name
-- ARGV[1]  the grant's ID and its token, " ID TOKEN "
-- ARGV[2]  the slot of the grant
-- ARGV[3]  TTL, microseconds
-- ARGV[4]  1 if the client has started before it confirmed the grant: this call confirms it. Absent
--          otherwise
--
-- Returns R (renewed), N (there is no such grant) or T (the grant was taken away), and the server's
-- time.
local K = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local text = string.format('%.0f', now)
local id = string.match(ARGV[1], '%S+')
local found = redis.call('HMGET', K, 's' .. ARGV[2], 'm', 'v' .. id)
local rec, m = found[1], found[2]
if not rec or not string.find(rec, ARGV[1], 1, true) then return {found[3] and 'T' or 'N', text} end
local before, at, had = string.match(rec, '^(.* )(%d+)%+(%d+)$')
-- The state begins with the earliest expiry. If the name has one grant, that is its expiry.
local e, slots = string.match(m or '0 1 ', '^(%d+) (%d+) ')
if not at or not e or tonumber(ARGV[2]) >= tonumber(slots) then return redis.error_reply('ERR holdfast: broken record 1: the grant or the state') end
if at + had <= now then return {'N', text} end
local ttl = tonumber(ARGV[3])
local after = before .. text .. '+' .. ARGV[3]
-- PEXPIRE comes first, because it needs no memory: after a first write a full server refuses no
-- command of a script. The key may have to exist for longer, for the grants of other holders.
local ms = math.ceil(ttl / 1000) + 1
if m then ms = math.max(ms, redis.call('PTTL', K)) end -- mutation: redis-life
redis.call('PEXPIRE', K, string.format('%.0f', ms))
if m then
  if ARGV[4] then redis.call('HSET', K, 'i' .. id, '=' .. ARGV[2]) end
  if string.match(m, '^[%d ]+ %d+:1$') or now + ttl < tonumber(e) then
    redis.call('HSET', K, 's' .. ARGV[2], after, 'm', string.format('%.0f', now + ttl) .. string.sub(m, #e + 1))
    return {'R', text}
  end
end
redis.call('HSET', K, 's' .. ARGV[2], after)
return {'R', text}
