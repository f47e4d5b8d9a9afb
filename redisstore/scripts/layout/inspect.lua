-- inspect: S records...
local answer = {'S', text(now)}
holders(function(of, rec, rest)
  answer[#answer + 1] = of
  answer[#answer + 1] = rec
  answer[#answer + 1] = text(rest)
end)
return answer
