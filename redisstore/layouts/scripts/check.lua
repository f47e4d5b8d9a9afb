-- check returns R (the grant exists), N (there is no such grant) or T (it was taken away).
if held() then return {'R', text(now)} end
return {call('HEXISTS', B, 'b:' .. own) == 1 and 'T' or 'N', text(now)}
