-- inspect returns S and, for each holder, the owner, the record and the milliseconds left.
local answer = {'S', text(now)}
holders(function(of, rec, rest)
  answer[#answer + 1] = of
  answer[#answer + 1] = rec
  answer[#answer + 1] = text(rest)
end)
return answer
