-- check: R, or N (no such grant) or T (taken away).
if held() then return {'R', text(now)} end
return {call('HEXISTS', B, 'b:' .. own) == 1 and 'T' or 'N', text(now)}
