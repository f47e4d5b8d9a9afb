-- Redisson's fair lock: an RLock, a list of waiters at KEYS[3], and a sorted set at KEYS[4],
-- waiter -> until when it is waited for, in ms. Each entry adds its time to that of the
-- entry before it, and takes it with it when it goes. An entry without a time is never
-- removed, here and in Redisson: so a time is written before its entry, and removed behind it.
local queue, times = KEYS[3], KEYS[4]
local patience = tonumber(ARGV[10])

-- removable has a user without a right that a removal needs refused before it.
local function removable()
  call('LREM', queue, 0, '')
  call('ZREM', times, '')
end

begin = function()
  while true do
    local head = call('LINDEX', queue, 0)
    local time = head and call('ZSCORE', times, head)
    if not time or tonumber(time) > ms then return end
    removable()
    call('LPOP', queue)
    call('ZREM', times, head)
  end
end

local function notify()
  local head = call('LINDEX', queue, 0)
  if head then publish(channel .. ':' .. head, '0') end
end

local function place()
  for i, of in ipairs(call('LRANGE', queue, 0, -1)) do
    if of == own then return i end
  end
end

blocked = function()
  local left = call('PTTL', N)
  local head = call('LINDEX', queue, 0)
  if left == -2 then
    if not head or head == own then return end
    left = math.max(tonumber(call('ZSCORE', times, head) or '') or 0, ms) - ms
  end
  if ARGV[9] ~= '1' then return left end
  local i = place()
  if not i then
    local last = call('LINDEX', queue, -1)
    local from = last and tonumber(call('ZSCORE', times, last) or '') or ms + math.max(call('PTTL', N), 0)
    call('ZADD', times, text(from + patience), own)
    call('RPUSH', queue, own)
  else
    -- Those before it take theirs with them: it outlives that while it is refreshed.
    local till = ms + patience * i
    if (tonumber(call('ZSCORE', times, own) or '') or 0) < till - patience / 10 then call('ZADD', times, text(till), own) end
  end
  return left
end

grab = function()
  if call('LINDEX', queue, 0) == own then
    removable()
    call('LPOP', queue)
    call('ZREM', times, own)
    for _, of in ipairs(call('ZRANGE', times, 0, -1)) do call('ZINCRBY', times, -patience, of) end
  end
  call('HSET', N, own, 1)
  call('PEXPIRE', N, ttl)
end

drop = function()
  call('DEL', N)
  notify()
end

leave = function()
  local i = place()
  if not i then
    call('ZREM', times, own) -- left if the entry was refused
    return
  end
  removable()
  for _, of in ipairs(call('LRANGE', queue, i, -1)) do call('ZINCRBY', times, -patience, of) end
  call('LREM', queue, 0, own)
  call('ZREM', times, own)
  if i == 1 and call('EXISTS', N) == 0 then notify() end
end
