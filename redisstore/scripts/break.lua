-- Takes away the grant that has the given token, and notifies its holder.
--
-- KEYS[1]  the name
-- ARGV[1]  the token
--
-- Returns R (taken away) or N (there is no such grant), and the server's time.
local K = KEYS[1]
-- How long the ID of a grant that was taken away stays withdrawn: longer than noticeTimeout of the
-- client, so that the holder's next check finds it.
local NOTICE = 5000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include plain
-- include common

load({'s0', 'm'})
if not st.exists then return {'N', num(now)} end
sweep()
local answer = 'N'
for from = 0, st.n - 1, 500 do
  local fields = {}
  for slot = from, math.min(from + 500, st.n) - 1 do
    if pending['s' .. slot] == nil then fields[#fields + 1] = 's' .. slot end
  end
  if #fields > 0 then read(fields) end
  for slot = from, math.min(from + 500, st.n) - 1 do
    local g = grantAt(slot)
    local above = g and tonumber(ARGV[1]) - g.token
    if above and above >= 0 and above < g.tokens then
      answer = 'R'
      local confirmed = st.lone or not string.find(get('i' .. g.id) or '', '^%-%d+$')
      drop(slot, g)
      publish(g.channel, 'x' .. g.id)
      -- If the holder misses the message, its next check finds that the ID is withdrawn. A waiter
      -- that has not confirmed its grant keeps waiting, so its ID is not withdrawn.
      if confirmed then withdraw(g.id, now + NOTICE) end
      break
    end
  end
  if answer == 'R' then break end
end
promote()
commit()
return {answer, num(now)}
