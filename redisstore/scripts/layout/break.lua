-- break returns R (taken away) or N (there is no such grant). ARGV 13 is the grant's token.
begin()
local found
holders(function(of, rec)
  if string.match(rec, '^%S+ (%d+) ') == ARGV[13] then found = of end
end)
if not found then return {'N', text(now)} end
own = found
sweep()
call('HSET', B, 'b:' .. own, text(now + keep * 1000))
forget()
live(keep)
drop()
return {'R', text(now)}
