-- Redisson's fenced lock: an RLock, and a counter of tokens at KEYS[3].
mint = function() return call('INCR', KEYS[3]) end
