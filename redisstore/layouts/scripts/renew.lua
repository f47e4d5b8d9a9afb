-- renew returns R (renewed), N (there is no such grant) or T (it was taken away).
begin()
if not held() then
  return {call('HEXISTS', B, 'b:' .. own) == 1 and 'T' or 'N', text(now)}
end
if call('EXISTS', B) == 1 then live(math.max(ttl, keep)) end
extend()
return {'R', text(now)}
