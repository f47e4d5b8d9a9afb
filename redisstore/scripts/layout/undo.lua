-- undo: R. What id has left is removed, and a request that still arrives is refused.
begin()
refuse()
if held() then
  forget()
  drop()
end
leave()
return {'R', text(now)}
