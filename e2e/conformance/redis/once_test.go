package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// warm makes a client open 40 connections. Where a proxy loses the answers, a connection that has not
// finished its handshake carries no request.
func warm(t *testing.T, client *goredis.Client) {
	t.Helper()
	var idle []*goredis.Conn
	for range 40 {
		c := client.Conn()
		check(t, c.Ping(t.Context()).Err())
		idle = append(idle, c)
	}
	for _, c := range idle {
		_ = c.Close()
	}
}

// TestUnansweredCommandIsSentOnce: the answer to a command of the store is lost. go-redis does not send
// the command again, alone or in a pipeline, although its options allow three retries.
func TestUnansweredCommandIsSentOnce(t *testing.T) {
	r := start(t)
	p := proxy(t, r)
	client := goredis.NewClient(&goredis.Options{
		Addr: p.Address(), PoolSize: 50, MaxRetries: 3, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: time.Millisecond, ReadTimeout: time.Second,
	})
	defer client.Close()
	s, err := redisstore.New(client)
	check(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	pairs(t, s, 1)
	for _, n := range []int{1, 8} {
		warm(t, client)
		do(t, r, "CONFIG", "RESETSTAT")
		check(t, p.DropAnswers())
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				_, err := s.Acquire(ctx, request(fmt.Sprintf("once-%d-%d", n, i), driver.Exclusive, long))
				if err == nil {
					t.Error("granted without an answer")
				}
			})
		}
		all.Wait()
		if sent := calls(t, r, "evalsha"); sent < 1 || sent > n {
			t.Errorf("%d requests were sent %d times", n, sent)
		}
		check(t, p.Heal())
		// The client reconnects. A connection that is about to end may still carry a request to the
		// server, and no answer back. The name of that request stays locked, so each try has another.
		for try := 0; ; try++ {
			g, err := s.Acquire(ctx, request(fmt.Sprintf("after-%d-%d", n, try), driver.Exclusive, long))
			if err == nil {
				release(t, s, g)
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
			t.Log(err)
		}
	}
}
