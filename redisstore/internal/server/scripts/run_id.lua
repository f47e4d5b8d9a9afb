-- Returns the ID of the server's process, or an error if the user may not use INFO.
--
-- KEYS[1]  any key: a proxy may choose the server by it
return {'I', string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''}
