package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// TestSentOnce: what is not answered is not sent again by go-redis, by itself or in a
// pipeline, although the client may send its user's commands four times.
func TestSentOnce(t *testing.T) {
	r := start(t)
	p := behindProxy(t, r)
	client := goredis.NewClient(&goredis.Options{
		Addr: p.Address(), PoolSize: 50, MaxRetries: 3, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: time.Millisecond, ReadTimeout: time.Second,
	})
	defer client.Close()
	s, err := adapter.New(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	pairs(t, s, 1)
	for _, n := range []int{1, 8} {
		// A connection that has not been greeted would not send.
		var idle []*goredis.Conn
		for range 40 {
			c := client.Conn()
			if err := c.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			idle = append(idle, c)
		}
		for _, c := range idle {
			_ = c.Close()
		}
		do(t, r, "CONFIG", "RESETSTAT")
		if err := p.DropAnswers(); err != nil {
			t.Fatal(err)
		}
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
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
		// The connections are made anew. One that is just ending may yet carry a request
		// to the server, and no answer back: that one's name stays taken.
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
