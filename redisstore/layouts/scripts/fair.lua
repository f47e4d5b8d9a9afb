-- Redisson's fair lock: an RLock, a list of waiters at KEYS[3], and a sorted set at KEYS[4] with the
-- deadline of each waiter's entry, in ms. The deadline of a new entry is entryTime after that of the
-- entry before it, and that of the first one is entryTime after the end of the lease. When an entry is removed, the
-- deadlines behind it come forward by entryTime. No script, here or in Redisson, removes an entry without a deadline. So
-- a script writes the deadline before the entry, and removes the deadline after the entry.
local queue, times = KEYS[3], KEYS[4]
local entryTime = tonumber(ARGV[10])

-- removable tries the commands of a removal. If the user lacks a right, the server refuses them here,
-- before anything has changed.
local function removable()
  call('LREM', queue, 0, '')
  call('ZREM', times, '')
end

begin = function()
  for _ = 1, 1000 do -- the next call removes more
    local head = call('LINDEX', queue, 0)
    local time = head and call('ZSCORE', times, head)
    if not time or tonumber(time) > ms then return end
    removable()
    call('LPOP', queue)
    call('ZREM', times, head)
  end
end

-- notify wakes the first waiter.
local function notify()
  local head = call('LINDEX', queue, 0)
  if head then publish(channel .. ':' .. head, '0') end
end

-- summon wakes the first waiter of a free name, and returns the milliseconds left to its entry. A deadline contains the
-- lease of the holder for which it was written, and that holder may have released early. So from the first request on that
-- finds the name free, the first waiter has entryTime to take it. Without a deadline, as after an eviction, it gets one. If
-- the server refuses that, the entry lasts as before.
-- Redisson can lose the message to the first waiter, which then waits for its whole time. So every request of a waiter behind
-- it sends the message again.
local function summon(head)
  local old = tonumber(call('ZSCORE', times, head) or '')
  local due = ms + entryTime
  local shorter = not old or old > due
  if shorter then redis.pcall('ZADD', times, text(due), head) end
  if shorter or ARGV[9] == '1' then notify() end
  return math.max(math.min(old or due, due), ms) - ms
end

-- position returns the position of own in the list, or nil.
local function position()
  for i, of in ipairs(call('LRANGE', queue, 0, -1)) do
    if of == own then return i end
  end
end

blocked = function()
  local left = call('PTTL', N)
  local lease = math.max(left, 0)
  local head = call('LINDEX', queue, 0)
  if left == -2 then
    if not head or head == own then return end
    left = summon(head)
  end
  if ARGV[9] ~= '1' then return left end
  local i = position()
  if not i then
    local last = call('LINDEX', queue, -1)
    local from = last and tonumber(call('ZSCORE', times, last) or '') or ms + lease
    call('ZADD', times, text(from + entryTime), own)
    call('RPUSH', queue, own)
  else
    -- A refresh gives the entry the deadline of one made now, so that it outlives the lease and the entries before it. When
    -- one of these is removed, the deadline comes forward by entryTime.
    local till = ms + lease + entryTime * i
    if (tonumber(call('ZSCORE', times, own) or '') or 0) < till - entryTime / 10 then call('ZADD', times, text(till), own) end
  end
  return left
end

-- renewEntries brings the deadlines forward after the removal of the first entry. In a queue that never
-- empties, only this changes deadlines: each new entry is later than the last one, and each removal takes
-- that back. So after a while the entry of a living waiter would be at its end when it becomes the first.
-- Therefore no deadline comes forward beyond that of an entry made now. A deadline whose entry is gone, as after an eviction
-- of the list, does not count: no script removes it.
local function renewEntries()
  for i, of in ipairs(call('LRANGE', queue, 0, -1)) do
    local old = tonumber(call('ZSCORE', times, of) or '') or 0
    call('ZADD', times, text(math.max(old - entryTime, ms + ttl + entryTime * i)), of)
  end
end

grab = function()
  if call('LINDEX', queue, 0) == own then
    removable()
    call('LPOP', queue)
    call('ZREM', times, own)
    renewEntries()
  end
  call('HSET', N, own, 1)
  call('PEXPIRE', N, ttl)
end

drop = function()
  call('DEL', N)
  notify()
end

leave = function()
  local i = position()
  if not i then
    call('ZREM', times, own) -- the deadline remains if the server has refused the entry
    return
  end
  removable()
  for _, of in ipairs(call('LRANGE', queue, i, -1)) do call('ZINCRBY', times, -entryTime, of) end
  call('LREM', queue, 0, own)
  call('ZREM', times, own)
  if i == 1 and call('EXISTS', N) == 0 then notify() end
end
