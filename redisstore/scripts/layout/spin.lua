-- Redisson's spin lock: an RLock whose release notifies no waiter.
drop = function() call('DEL', N) end
