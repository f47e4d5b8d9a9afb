package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// ringScript gives the name to the next process that listens, with the next token.
var ringScript = goredis.NewScript(`
local state = redis.call('HMGET', KEYS[1], 'holder', 'members')
if state[1] ~= ARGV[1] then return redis.error_reply('ERR not the holder') end
local token, i = redis.call('HINCRBY', KEYS[1], 'token', 1), tonumber(ARGV[1])
repeat i = (i + 1) % state[2] until redis.call('PUBLISH', KEYS[1] .. i, token) > 0
return redis.call('HSET', KEYS[1], 'holder', i)`)

// openRedisRing opens a member of a ring. A lock waits for the message of the member before, and an unlock is one
// script. A holder that dies stops the ring, and so does a member that does not want the name.
func openRedisRing(address string) (client, error) {
	ctx := context.Background()
	c := goRedis(address)
	n, err := c.HIncrBy(ctx, "ring", "members", 1).Result()
	if err != nil {
		return client{}, err
	}
	me := strconv.FormatInt(n-1, 10)
	messages := c.Subscribe(ctx, "ring"+me)
	if _, err := messages.Receive(ctx); err != nil {
		return client{}, err
	}
	starts := n == 1
	lock := func(ctx context.Context, _ string) (uint64, func() error, error) {
		token := "1"
		if starts {
			starts = false
			if err := c.HSet(ctx, "ring", "holder", me, "token", token).Err(); err != nil {
				return 0, nil, err
			}
		} else {
			end, _ := ctx.Deadline()
			got, err := messages.ReceiveTimeout(ctx, time.Until(end))
			m, ok := got.(*goredis.Message)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded): // the others have ended their turns
				<-ctx.Done()
				return 0, nil, ctx.Err()
			case !ok:
				return 0, nil, fmt.Errorf("no message, but %v: %v", got, err)
			}
			token = m.Payload
		}
		unlock := func() error { return ringScript.Run(context.Background(), c, []string{"ring"}, me).Err() }
		number, err := strconv.ParseUint(token, 10, 64)
		return number, unlock, err
	}
	return client{lock: lock, close: func() { _ = c.Close() }}, nil
}
