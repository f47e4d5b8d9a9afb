-- Redisson's read and write locks: a hash with the field mode, and how often each owner holds the
-- lock. The owner of a writer is "<id>:write". Each reader has a key for its lease, and the name's
-- key lasts as long as the longest lease.
local function writes(of) return string.sub(of, -6) == ':write' end

-- leaseKey returns the key of a reader's lease.
local function leaseKey(of, i) return stem .. ':' .. of .. ':rwlock_timeout:' .. i end

held = function()
  return call('HEXISTS', N, own) == 1 and (writes(own) or call('EXISTS', leaseKey(own, 1)) == 1)
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
  call('SET', leaseKey(own, 1), '1', 'PX', ttl)
  call('HSET', N, 'mode', 'read', own, 1)
  lengthen()
end

extend = function()
  if writes(own) then
    call('PEXPIRE', N, ttl)
    return
  end
  call('PEXPIRE', leaseKey(own, 1), ttl)
  lengthen()
end

-- longest returns the remaining time of the longest lease of the other readers. A reader has a lease for
-- each time that it holds the lock, and ENTRIES limits them.
local ENTRIES = 1000
local function longest()
  local most = 0
  local all = call('HGETALL', N)
  for i = 1, #all, 2 do
    if all[i] ~= 'mode' and all[i] ~= own and not writes(all[i]) then
      local entries = tonumber(all[i + 1]) or 0
      if entries > ENTRIES then broken(1, all[i]) end
      for j = entries, 1, -1 do most = math.max(most, call('PTTL', leaseKey(all[i], j))) end
    end
  end
  return most
end

-- forget reads the leases before it changes the side key.
local left
local forgetGrant = forget
forget = function()
  left = longest()
  forgetGrant()
end

-- notify wakes Redisson's waiters. For '1' Redisson wakes all threads that wait for the lock, for '0'
-- one thread. A thread that has tried and does not wait yet needs the '0' of a writer, too. Without
-- it the thread sleeps until the expiry of the lease that it saw.
local function notify()
  if writes(own) then publish(channel, '1') end
  publish(channel, '0')
end

-- Before N changes, drop does everything that the server may refuse: each command, and the access to
-- the key of a reader while the slot moves.
drop = function()
  touch()
  if not writes(own) then call('DEL', leaseKey(own, 1)) end
  if left == 0 and (writes(own) or call('HGET', N, 'mode') ~= 'write') then
    call('DEL', N)
    notify()
    return
  end
  call('HDEL', N, own)
  if not writes(own) then
    if left > 0 then call('PEXPIRE', N, left) end
    return
  end
  call('HSET', N, 'mode', 'read')
  notify()
end

holders = function(add)
  local left = call('PTTL', N)
  for _, of in ipairs(call('HKEYS', N)) do
    if of ~= 'mode' then
      local rest = writes(of) and left or call('PTTL', leaseKey(of, 1))
      -- PTTL is 0 in the last millisecond of a key, which still holds the lock.
      if rest >= 0 then add(of, record(of), math.max(rest, 1)) end
    end
  end
end
