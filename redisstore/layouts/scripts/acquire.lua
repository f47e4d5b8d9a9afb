-- acquire returns G token (granted), B ms records... (not granted), L (too late), or V (the
-- request was rolled back, or its grant was taken away). ARGV 13 is 1 to return the holders.
if now > late then return {'L', text(now)} end
local ended = call('HMGET', B, 'v:' .. id, 'b:' .. own)
if ended[1] or ended[2] then return {'V', text(now)} end
begin()
local token
if held() then -- requested again after a lost answer
  token = recorded()
  if token then
    token = number(token, 'the token')
    live(math.max(ttl, keep))
  else
    token = mint()
    write(token)
  end
  extend()
else
  local left = blocked()
  if left then
    local answer = {'B', text(now), text(left)}
    if ARGV[13] == '1' then
      holders(function(of, rec, rest)
        answer[#answer + 1] = of
        answer[#answer + 1] = rec
        answer[#answer + 1] = text(rest)
      end)
    end
    return answer
  end
  token = mint()
  write(token)
  token = grab(token) or token
end
return {'G', text(now), text(token)}
