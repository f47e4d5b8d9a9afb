-- release: R, or N (no such grant). ARGV 13 is its token.
begin()
if not held() or (recorded() or ARGV[13]) ~= ARGV[13] then return {'N', text(now)} end
forget()
drop()
return {'R', text(now)}
