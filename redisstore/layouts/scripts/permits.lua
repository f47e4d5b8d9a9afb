-- Redisson's RPermitExpirableSemaphore: a string with the number of free permits, and a sorted set at
-- KEYS[3] with the expiry of each permit, in ms.
local permits = KEYS[3]

-- free gives permits back. It first removes no permit: if the user lacks that right, the server
-- refuses the command here, before the number has changed. Without the name's key there is no
-- number, and grab counts the permits in the set.
local function free(all)
  call('ZREM', permits, '')
  if call('EXISTS', N) == 1 then
    local value = call('INCRBY', N, #all)
    if value > 0 then publish(channel, text(value)) end
  end
  for _, of in ipairs(all) do call('ZREM', permits, of) end
end

local function expiry(of) return tonumber(call('ZSCORE', permits, of) or '') end

begin = function()
  local ended = call('ZRANGEBYSCORE', permits, 0, ms)
  if #ended > 0 then free(ended) end
end

held = function()
  local expires = expiry(own)
  return expires and expires > ms
end

blocked = function()
  local value, standing = tonumber(call('GET', N) or ''), call('ZCARD', permits)
  if standing < limit and (not value or value >= 1) then return end
  local first = call('ZRANGE', permits, 0, 0, 'WITHSCORES')
  return first[2] and math.max(tonumber(first[2]) - ms, 0) or -1
end

grab = function()
  local left = limit - call('ZCARD', permits)
  if call('SETNX', N, left) == 1 then publish(channel, text(left)) end
  call('DECRBY', N, 0) -- the server may refuse this, and no permit exists yet
  call('ZADD', permits, text(ms + ttl), own)
  call('DECRBY', N, 1)
  local life = call('PTTL', N)
  if life > 0 then call('PEXPIRE', permits, life) end
end

extend = function()
  touch() -- ZADD needs memory
  call('ZADD', permits, text(ms + ttl), own)
end

drop = function() free({own}) end

holders = function(add)
  local all = call('ZRANGE', permits, 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    local rest = tonumber(all[i + 1]) - ms
    if rest > 0 then add(all[i], record(all[i]), rest) end
  end
end
