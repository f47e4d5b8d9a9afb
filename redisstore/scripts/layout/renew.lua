-- renew: R, or N (no such grant) or T (taken away).
begin()
if not held() then
  return {call('HEXISTS', B, 'b:' .. own) == 1 and 'T' or 'N', text(now)}
end
if call('EXISTS', B) == 1 then live(math.max(ttl, keep)) end
extend()
return {'R', text(now)}
