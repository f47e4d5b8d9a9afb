-- release returns R received (released), or N (there is no such grant). ARGV 13 is the grant's token. The
-- scripts refuse a request of the grant that still arrives.
begin()
refuse()
if not held() or (recorded() or ARGV[13]) ~= ARGV[13] then return {'N', text(now)} end
forget()
drop()
return {'R', text(now), text(received)}
