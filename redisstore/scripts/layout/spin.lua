-- Redisson's spin lock: an RLock whose release does not notify waiters.
drop = function() call('DEL', N) end
