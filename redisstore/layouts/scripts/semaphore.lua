-- Redisson's RSemaphore: a string with the number of free permits. It has no leases. The side key has
-- the leases of this library's holders, and a script that finds an expired one gives the permit
-- back. So the side key outlives the last lease by a week.
local week = 604800000

-- each calls f with the owner and the expiry of each lease, and returns the number of leases.
local function each(f)
  local all = call('HGETALL', B)
  local n = 0
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'e:' then
      n = n + 1
      if f then f(string.sub(all[i], 3), number(all[i + 1], all[i])) end
    end
  end
  return n
end

live = function()
  local last = ms
  local n = each(function(_, expires) last = math.max(last, expires) end)
  call('PEXPIRE', B, n > 0 and last - ms + week or keep)
end

-- free gives permits back, if the number of free permits exists. If the server refuses a command, it
-- does so before the number has changed.
local function free(all)
  live()
  call('HDEL', B, '')
  if call('EXISTS', N) == 1 then publish(channel, text(call('INCRBY', N, #all))) end
  for _, of in ipairs(all) do call('HDEL', B, 'h:' .. of, 'e:' .. of) end
  live()
end

-- write writes only the token. grab writes the grant after it has taken a permit.
local remember = write
write = function(token) beside(keep, 'last', text(token)) end

forget = function() end

begin = function()
  local ended = {}
  each(function(of, expires)
    if expires <= ms then ended[#ended + 1] = of end
  end)
  if #ended > 0 then free(ended) end
end

held = function()
  return (tonumber(call('HGET', B, 'e:' .. own) or '') or 0) > ms and call('EXISTS', N) == 1
end

blocked = function()
  local value = tonumber(call('GET', N) or '')
  local first = -1
  local n = each(function(_, expires)
    if first < 0 or expires - ms < first then first = math.max(expires - ms, 0) end
  end)
  if value and (value < 1 or n >= limit) then return first end
end

grab = function(token)
  if call('SETNX', N, limit) == 1 then
    -- The name's key was deleted, and with it the grants from before. The script forgets them, since
    -- they would give back permits of the new number.
    each(function(of) if of ~= own then call('HDEL', B, 'h:' .. of, 'e:' .. of) end end)
    publish(channel, text(limit))
  end
  call('DECRBY', N, 1)
  call('HSET', B, 'e:' .. own, text(ms + ttl))
  remember(token)
end

extend = function()
  call('HSET', B, 'e:' .. own, text(ms + ttl))
  live()
end

drop = function() free({own}) end

holders = function(add)
  each(function(of, expires)
    if expires > ms then add(of, record(of), expires - ms) end
  end)
end
