-- Reports which of the given grants have ended.
--
-- KEYS     their names, all of one bucket or all of one server
-- ARGV     for each grant: its ID and its token, " ID TOKEN ", and its slot
--
-- Returns R, the server's time, and the number of each grant that has ended. Numbers count from 1.
-- The number is negative if the grant was taken away.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {'R', string.format('%.0f', now)}
for i, key in ipairs(KEYS) do
  local mine = ARGV[2 * i - 1]
  -- A key of another type has no grant. The server refuses to read it, which is no error of the others.
  local rec = redis.pcall('HGET', key, 's' .. ARGV[2 * i])
  local at, ttl
  if type(rec) == 'string' and string.find(rec, mine, 1, true) then at, ttl = string.match(string.sub(rec, -40), ' (%d+)%+(%d+)$') end
  if not at or at + ttl <= now then
    local taken = redis.pcall('HGET', key, 'v' .. string.match(mine, '%S+'))
    answer[#answer + 1] = string.format('%.0f', type(taken) == 'string' and -i or i)
  end
end
return answer
