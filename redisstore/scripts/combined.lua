-- Runs the fast paths of acquire and release for several requests of one client, one after another.
-- If the fast path does not decide a request, the script changes nothing for it, and the client
-- sends it again in a call of its own. An error of one request does not affect the others.
--
-- KEYS     in the order of the requests: for each acquire the name and the bucket's counter; for
--          each release the name
-- ARGV[1]  the server's time after which the script decides no acquire
-- ARGV[2]  the highest token that the client has seen in any of the buckets. If the server's clock
--          is behind it, the script decides no acquire
-- The other arguments, in the order of the requests:
--   "+MICROS MILLIS"  the TTL of the acquires that follow, as in ARGV[2] and ARGV[3] of
--                     acquire.lua
--   " ID TOKEN "      a release: ARGV[1] of release.lua
--   otherwise         an acquire: ARGV[1] of acquire.lua
--
-- Returns the server's time, a letter for each request in one string, and the answers of the
-- requests with letter *. An answer is words separated by newlines, or "EMESSAGE". The letters:
--   G  granted in slot 0; the token is the server's time
--   R  released
--   N  there is no such grant
--   F  not decided; the script has changed nothing
local call, try, byte, find, match = redis.call, redis.pcall, string.byte, string.find, string.match
local time = call('TIME')
local text = time[2]
while #text < 6 do text = '0' .. text end
text = time[1] .. text
local now = tonumber(text)
local decides = now <= tonumber(ARGV[1]) and now > tonumber(ARGV[2])
local millis, ends, tail

-- acquire does what the fast path of acquire.lua does.
local function acquire(K, C, request)
  if call('HLEN', K) == 0 then -- mutation: redis-combined
    local last = call('SET', C, text, 'GET')
    last = last and tonumber(last) or 0
    local record, token
    if last < now then
      record = request .. tail
    else
      last = last + 1
      token = string.format('%.0f', last)
      if last >= 9007199254740992 then -- EXACT in plain.lua
        call('SET', C, string.format('%.0f', last - 1))
        return '*', 'EERR holdfast: tokens of this bucket are used up'
      end
      call('SET', C, token)
      record = request .. ' ' .. token .. ends
    end
    call('HSET', K, 's0', record)
    local done = try('PEXPIRE', K, millis)
    if type(done) == 'table' then -- refused: the name stays free
      if type(try('HDEL', K, 's0')) == 'table' then call('DEL', K) end
      error(done)
    end
    if not token then return 'G' end
    return '*', 'G\n' .. text .. '\n' .. token .. '\n0'
  end
  local found = call('HMGET', K, 's0', 'm')
  if found[1] and not found[2] then
    local other, at, ttl = match(found[1], '^(%d+) .* (%d+)%+(%d+)$')
    if other and at + ttl > now and (other == '1' or byte(request, 2) == 32 and byte(request) == 49) then
      return '*', 'B\n' .. text .. '\n0 ' .. found[1]
    end
  end
  return 'F'
end

-- release does what the fast path of release.lua does.
local function release(K, mine)
  local found = call('HMGET', K, 's0', 'm')
  if found[2] then return 'F' end
  if not found[1] or not find(found[1], mine, 1, true) then return 'N' end
  call('HDEL', K, 's0') -- the only field, so this removes the key
  return 'R'
end

local key, letters, answer = 1, {}, {text, ''}
for i = 3, #ARGV do
  local request, done, letter, more = ARGV[i], true, 'F', nil
  local first = byte(request)
  if first == 43 then
    local micros
    micros, millis = match(request, '^%+(%d+) (%d+)$')
    ends = ' ' .. text .. ' ' .. text .. '+' .. micros
    tail = ' ' .. text .. ends
  else
    if first == 32 then
      done, letter, more = pcall(release, KEYS[key], request)
      key = key + 1
    else
      if decides then done, letter, more = pcall(acquire, KEYS[key], KEYS[key + 1], request) end
      key = key + 2
    end
    if not done then
      more = 'E' .. (type(letter) == 'table' and letter.err or tostring(letter))
      letter = '*'
    end
    letters[#letters + 1] = letter
    if more then answer[#answer + 1] = more end
  end
end
answer[2] = table.concat(letters)
return answer
