-- Redisson's spin lock: an RLock whose release notifies nobody.
drop = function() call('DEL', N) end
