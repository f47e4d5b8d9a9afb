package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestLocksFollowAddressFromDemotedPrimary: a replica is promoted, and the address moves to it. The old
// primary becomes its replica, and keeps all connections. Clients use the new primary: the holder keeps
// its grant, and the waiter gets the next one. A replica that accepts writes answers without an error.
func TestLocksFollowAddressFromDemotedPrimary(t *testing.T) {
	for _, readOnly := range []string{"yes", "no"} {
		t.Run("replica-read-only "+readOnly, func(t *testing.T) {
			t.Parallel()
			locksFollowAddress(t, readOnly, func(address string) driver.Store { return open(t, "redis://"+address) })
		})
		t.Run("replica-read-only "+readOnly+", client of the program", func(t *testing.T) {
			t.Parallel()
			locksFollowAddress(t, readOnly, func(address string) driver.Store {
				client := goredis.NewClient(&goredis.Options{Addr: address})
				t.Cleanup(func() { _ = client.Close() })
				s, err := redisstore.New(client)
				check(t, err)
				t.Cleanup(func() { _ = s.Close(context.Background()) })
				return s
			})
		})
	}
}

func locksFollowAddress(t *testing.T, readOnly string, open func(address string) driver.Store) {
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	check(t, err)
	t.Cleanup(g.Kill)
	old, next := g.Primary, g.Replicas[0]
	do(t, old, "CONFIG", "SET", "replica-read-only", readOnly)
	p := proxy(t, old)
	var stores []driver.Store
	after := holdAndWait(t, func() driver.Store {
		s := open(p.Address())
		stores = append(stores, s)
		for range 8 { // so that the client has all connections that it may open
			release(t, s, must(t, s, request("x", driver.Exclusive, long)))
		}
		return s
	}, "held")
	caughtUp(t, old, 1)
	do(t, next, "REPLICAOF", "NO", "ONE")
	host, port, _ := strings.Cut(next.Address(), ":")
	do(t, old, "REPLICAOF", host, port)
	p.Lead(next.Address())
	for _, s := range stores {
		n := 0 // a new name each time: the former primary may have a grant that it lost since
		eventually(t, "locks are granted at the former primary", func() bool {
			n++
			name := fmt.Sprint("new-", n)
			g, err := s.Acquire(t.Context(), request(name, driver.Exclusive, long))
			if err != nil {
				code(t, s, err, driver.CodeUnavailable)
				return false
			}
			defer release(t, s, g)
			return do(t, next, "EXISTS", redisstore.Key("", name)) == int64(1)
		})
	}
	after()
}
