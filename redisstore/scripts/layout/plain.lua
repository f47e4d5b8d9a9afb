-- One string per name: "holdfast ID TOKEN SINCE OWNER" where it is ours.
local function mine(value)
  local of, token, since, who = string.match(value, '^holdfast (%S+) (%d+) (%d+) (.*)$')
  if of then return of, of .. ' ' .. token .. ' ' .. since .. ' 1 ' .. who end
end

local lengthen = live
live = function(time) lengthen(math.min(time, keep)) end

held = function()
  local start = 'holdfast ' .. own .. ' '
  return string.sub(call('GET', N) or '', 1, #start) == start
end

blocked = function()
  local left = call('PTTL', N)
  if left ~= -2 then return left end
end

write = function(token)
  call('HSET', B, 'last', text(token))
  live(keep)
end

recorded = function()
  local of, rec = mine(call('GET', N))
  return string.match(rec, '^%S+ (%d+) ')
end

forget = function() end

grab = function(token)
  call('SET', N, 'holdfast ' .. own .. ' ' .. text(token) .. ' ' .. text(now) .. ' ' .. owner, 'PX', ttl)
end

extend = function() call('PEXPIRE', N, ttl) end

drop = function()
  call('DEL', N)
  publish(channel, '1')
end

holders = function(add)
  local value = call('GET', N)
  if not value then return end
  local of, rec = mine(value)
  add(of or string.sub(value, 1, 100), rec or '', call('PTTL', N))
end
