-- undo removes what the request has left, and returns R. The scripts refuse the request if it still
-- arrives.
begin()
refuse()
if held() then
  forget()
  drop()
end
leave()
return {'R', text(now)}
