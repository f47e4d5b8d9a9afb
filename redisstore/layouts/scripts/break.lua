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
-- If the server refuses a command, the record of the grant stays, so that the break can be repeated.
local grant = record(own)
local done, refused = pcall(function()
  forget()
  live(keep)
  drop()
end)
if not done then
  if grant ~= '' then call('HSET', B, 'h:' .. own, grant) end
  error(refused, 0)
end
return {'R', text(now)}
