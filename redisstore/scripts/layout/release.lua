-- release: R, or N (no such grant). ARGV 13 is its token. A request of the grant that
-- still arrives is refused.
begin()
refuse()
if not held() or (recorded() or ARGV[13]) ~= ARGV[13] then return {'N', text(now)} end
forget()
drop()
return {'R', text(now)}
