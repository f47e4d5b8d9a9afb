-- Takes the grant with a token away and tells its holder.
--
-- KEYS[1]  the name
-- ARGV[1]  the token
--
-- Answers R or N (there is no such grant), and the server's time.
local K = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include common

load()
if not st.exists then return {'N', num(now)} end
sweep()
local answer = 'N'
seats(function(seat, g)
  if g.token == ARGV[1] then
    answer = 'R'
    local confirmed = string.sub(call('HGET', K, 'i' .. g.id) or '', 1, 1) ~= '-'
    drop(seat, g)
    publish(g.channel, 'x' .. g.id)
    -- A holder that did not hear it finds this when it looks. One that has yet to hear
    -- of its grant waits on.
    if confirmed then void(g.id, now + 5000000) end
    return true
  end
end)
promote()
save()
return {answer, num(now)}
