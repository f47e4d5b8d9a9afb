package redis

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// lossyConn is a connection that loses every write while lost is set.
type lossyConn struct {
	net.Conn
	lost *atomic.Bool
}

func (s lossyConn) Write(p []byte) (int, error) {
	if s.lost.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// TestDeadConnectionsDoNotBlockOthers: some connections are dead, and the client has not noticed it.
// Requests on them do not block other requests.
func TestDeadConnectionsDoNotBlockOthers(t *testing.T) {
	r := common(t)
	var old atomic.Pointer[atomic.Bool]
	old.Store(new(atomic.Bool))
	client := goredis.NewClient(&goredis.Options{
		Addr: r.Address(), ReadTimeout: time.Minute, MinIdleConns: 4, PoolFIFO: true, DisableIdentity: true,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return lossyConn{c, old.Load()}, err
		},
	})
	defer client.Close()
	s, err := redisstore.New(client)
	check(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	g := must(t, s, request(t.Name(), driver.Exclusive, long)) // connects
	check(t, s.Release(t.Context(), g, 0))
	eventually(t, "the client keeps connections", func() bool { return client.PoolStats().IdleConns >= 4 })
	lost := old.Load()
	old.Store(new(atomic.Bool))
	lost.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // less than the client's own timeout
	defer cancel()
	granted := make(chan struct{}, 100)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for i := 0; ; i++ {
		go func() {
			if _, err := s.Acquire(ctx, request(fmt.Sprintf("%s-%d", t.Name(), i), driver.Exclusive, long)); err == nil {
				granted <- struct{}{}
			}
		}()
		select {
		case <-granted:
			return
		case <-again.C:
		case <-ctx.Done():
			t.Fatal("the client sends no request any more")
		}
	}
}
