-- Redisson's RLock: a hash with an owner and how often it holds the lock. The key's time to live is
-- the lease.
held = function() return call('HEXISTS', N, own) == 1 end

blocked = function()
  if call('EXISTS', N) == 1 then return call('PTTL', N) end
end

grab = function()
  call('HSET', N, own, 1)
  call('PEXPIRE', N, ttl)
end

extend = function() call('PEXPIRE', N, ttl) end

drop = function()
  call('DEL', N)
  publish(channel, '0')
end

holders = function(add)
  local left = call('PTTL', N)
  for _, of in ipairs(call('HKEYS', N)) do add(of, record(of), left) end
end
