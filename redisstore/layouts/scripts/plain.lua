-- One string for each name, "holdfast ID TOKEN SINCE OWNER" if this library has written it.
local value

-- mine returns the owner in a value and the record of its grant, if this library has written it.
local function mine(from)
  local of, token, since, people = string.match(from, '^holdfast (%S+) (%d+) (%d+) (.*)$')
  if of then return of, of .. ' ' .. token .. ' ' .. since .. ' 1 ' .. people end
end

local lengthen = live
live = function(time) lengthen(math.min(time, keep)) end

held = function()
  local start = 'holdfast ' .. own .. ' '
  value = call('GET', N) or ''
  return string.sub(value, 1, #start) == start
end

blocked = function()
  local left = call('PTTL', N)
  if left ~= -2 then return left end
end

write = function(token) beside(keep, 'last', text(token)) end

recorded = function()
  local of, rec = mine(value)
  return string.match(rec, '^%S+ (%d+) ')
end

forget = function() end

grab = function(token)
  value = 'holdfast ' .. own .. ' ' .. text(token) .. ' ' .. text(now) .. ' ' .. owner
  call('SET', N, value, 'PX', ttl)
end

extend = function() call('PEXPIRE', N, ttl) end

drop = function()
  call('DEL', N)
  publish(channel, '1')
end

holders = function(add)
  local found = call('GET', N)
  if not found then return end
  local of, rec = mine(found)
  add(of or string.sub(found, 1, 100), rec or '', call('PTTL', N))
end
