-- Redisson's fenced lock: an RLock, and a counter at KEYS[3] that is the token.
mint = function() return call('INCR', KEYS[3]) end
