-- undo: R. What id has left is removed, and a request that still arrives is refused.
begin()
if late > now then
  if call('HLEN', B) > 100 then
    for _, field in ipairs(call('HKEYS', B)) do
      if string.sub(field, 1, 2) == 'v:' and tonumber(call('HGET', B, field)) < now then call('HDEL', B, field) end
    end
  end
  call('HSET', B, 'v:' .. id, text(late))
  live(math.ceil((late - now) / 1000))
end
if held() then
  forget()
  drop()
end
leave()
return {'R', text(now)}
