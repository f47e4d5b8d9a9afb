package redis

import (
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
				return over(t, goredis.NewClient(&goredis.Options{Addr: address}))()
			})
		})
	}
}

func locksFollowAddress(t *testing.T, readOnly string, open func(address string) driver.Store) {
	g := replicas(t)
	old, next := g.Primary, g.Replicas[0]
	do(t, old, "CONFIG", "SET", "replica-read-only", readOnly)
	p := proxy(t, old)
	locksFollow(t, func() driver.Store { return open(p.Address()) }, func() *servers.Redis {
		caughtUp(t, old, 1)
		do(t, next, "REPLICAOF", "NO", "ONE")
		replicate(t, old, next)
		p.Lead(next.Address())
		return next
	}, func(n int) string { return fmt.Sprint("new-", n) })
}

// replicate makes a server a replica. It keeps all connections.
func replicate(t *testing.T, r, primary *servers.Redis) {
	t.Helper()
	host, port, _ := strings.Cut(primary.Address(), ":")
	do(t, r, "REPLICAOF", host, port)
}

// TestClusterLocksFollowDemotedPrimary: a replica takes over the slots of a primary, which becomes its replica and keeps
// all connections. The clients use the new primary.
func TestClusterLocksFollowDemotedPrimary(t *testing.T) {
	for way, open := range map[string]func(t *testing.T, address string) driver.Store{
		"by URL": func(t *testing.T, address string) driver.Store { return open(t, "redis+cluster://"+address) },
		"client of the program": func(t *testing.T, address string) driver.Store {
			return over(t, goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{address}}))()
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			c := ownCluster(t, true)
			slotOf := func(name string) int {
				slot, err := c.Slot(t.Context(), redisstore.Key("", name))
				check(t, err)
				return slot
			}
			const third = 16384 / 3
			of := slotOf("held") / third
			old, next := c.Nodes[of], c.Nodes[of+3]
			at := 0
			locksFollow(t, func() driver.Store { return open(t, c.Nodes[(of+1)%3].Address()) }, func() *servers.Redis {
				caughtUp(t, old, 1)
				do(t, next, "CLUSTER", "FAILOVER", "TAKEOVER")
				eventually(t, "the primary is demoted", func() bool {
					info, err := old.Info(t.Context(), "replication")
					return err == nil && info["role"] == "slave"
				})
				return next
			}, func(int) string {
				for at++; slotOf(fmt.Sprint("new-", at))/third != of; at++ {
				}
				return fmt.Sprint("new-", at)
			})
		})
	}
}

// TestSentinelLocksFollowDemotedPrimary: the sentinels promote a replica, and an operator demotes the former primary,
// which keeps all connections. The clients use the new primary.
func TestSentinelLocksFollowDemotedPrimary(t *testing.T) {
	for way, open := range map[string]func(t *testing.T, s *servers.RedisSentinel, url string) driver.Store{
		"by URL": func(t *testing.T, _ *servers.RedisSentinel, url string) driver.Store { return open(t, url) },
		"client of the program": func(t *testing.T, s *servers.RedisSentinel, _ string) driver.Store {
			return over(t, goredis.NewFailoverClient(&goredis.FailoverOptions{
				MasterName: s.Name, SentinelAddrs: []string{s.Sentinels[0].Address()},
			}))()
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s, url := sentinels(t)
			old, err := s.Current(t.Context())
			check(t, err)
			// The sentinels would end all connections of the server that they demote.
			do(t, old, "ACL", "SETUSER", "operator", "on", ">secret", "allcommands", "allkeys")
			do(t, old, "ACL", "SETUSER", "default", "-replicaof", "-slaveof")
			operator := goredis.NewClient(&goredis.Options{Addr: old.Address(), Username: "operator", Password: "secret"})
			t.Cleanup(func() { _ = operator.Close() })
			locksFollow(t, func() driver.Store { return open(t, s, url) }, func() *servers.Redis {
				caughtUp(t, old, 2)
				check(t, s.Failover(t.Context()))
				next, err := s.FailedOver(t.Context(), old)
				check(t, err)
				host, port, _ := strings.Cut(next.Address(), ":")
				check(t, operator.Do(t.Context(), "REPLICAOF", host, port).Err())
				return next
			}, func(n int) string { return fmt.Sprint("new-", n) })
		})
	}
}

// locksFollow requires that clients use the new primary, which demote returns. name returns a new name of that primary.
func locksFollow(t *testing.T, open func() driver.Store, demote func() *servers.Redis, name func(n int) string) {
	t.Helper()
	var stores []driver.Store
	after := holdAndWait(t, func() driver.Store {
		s := open()
		stores = append(stores, s)
		for range 8 { // so that the client has all connections that it may open
			release(t, s, must(t, s, request("x", driver.Exclusive, long)))
		}
		return s
	}, "held")
	next := demote()
	for _, s := range stores {
		n := 0 // a new name each time: the former primary may have a grant that it lost since
		eventually(t, "locks are granted at the former primary", func() bool {
			n++
			name := name(n)
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
