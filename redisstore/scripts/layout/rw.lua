-- Redisson's read and write locks: a hash with the field mode, and owner -> how often. A
-- writer is "<id>:write". A reader has a key of its own for its lease, and the name's key
-- lives as long as the longest.
local function writes(of) return string.sub(of, -6) == ':write' end

local function hold(of, i) return stem .. ':' .. of .. ':rwlock_timeout:' .. i end

held = function()
  return call('HEXISTS', N, own) == 1 and (writes(own) or call('EXISTS', hold(own, 1)) == 1)
end

blocked = function()
  local mode = call('HGET', N, 'mode')
  if mode and (mode ~= 'read' or writes(own)) then return call('PTTL', N) end
end

local function lengthen()
  if call('PTTL', N) < ttl then call('PEXPIRE', N, ttl) end
end

grab = function()
  if writes(own) then
    call('HSET', N, 'mode', 'write', own, 1)
    call('PEXPIRE', N, ttl)
    return
  end
  call('SET', hold(own, 1), '1', 'PX', ttl)
  call('HSET', N, 'mode', 'read', own, 1)
  lengthen()
end

extend = function()
  if writes(own) then
    call('PEXPIRE', N, ttl)
    return
  end
  call('PEXPIRE', hold(own, 1), ttl)
  lengthen()
end

-- longest is how long the longest lease of the readers lasts.
local function longest()
  local most = 0
  local all = call('HGETALL', N)
  for i = 1, #all, 2 do
    if all[i] ~= 'mode' and not writes(all[i]) then
      for j = tonumber(all[i + 1]) or 0, 1, -1 do most = math.max(most, call('PTTL', hold(all[i], j))) end
    end
  end
  return most
end

drop = function()
  call('HDEL', N, own)
  local left = call('HLEN', N) > 1 and longest() or 0
  if writes(own) then
    if left > 0 then
      call('HSET', N, 'mode', 'read')
    else
      call('DEL', N)
    end
    publish(channel, '1')
    return
  end
  call('DEL', hold(own, 1))
  if left > 0 then
    call('PEXPIRE', N, left)
  elseif call('HGET', N, 'mode') ~= 'write' then
    call('DEL', N)
    publish(channel, '0')
  end
end

holders = function(add)
  local left = call('PTTL', N)
  for _, of in ipairs(call('HKEYS', N)) do
    if of ~= 'mode' then
      local rest = writes(of) and left or call('PTTL', hold(of, 1))
      if rest > 0 then add(of, record(of), rest) end
    end
  end
end
