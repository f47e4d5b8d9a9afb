package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// eventually calls f until it returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestEvictionThatBeginsLaterIsRefused: an operator changes the server's eviction policy while the store
// is in use. The store refuses new locks and waiters until the operator restores the policy. A holder
// can still renew and release.
func TestEvictionThatBeginsLaterIsRefused(t *testing.T) {
	r := start(t)
	url := "redis://" + r.Address()
	c := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer c.Close()
	over, err := adapter.New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close(context.Background())
	for library, s := range map[string]driver.Store{"rueidis": open(t, url), "goredis": over} {
		held := must(t, s, request(library+"-held", driver.Exclusive, long))
		w := submit(t, s, request(library+"-held", driver.Exclusive, long))
		do(t, r, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
		eventually(t, "the store grants on a server that evicts", func() bool {
			g, err := s.Acquire(t.Context(), request(library+"-new", driver.Exclusive, long))
			if err == nil {
				release(t, s, g)
				return false
			}
			code(t, s, err, driver.CodeRefused)
			return strings.Contains(err.Error(), "allkeys-lru")
		})
		select {
		case <-w.done:
			code(t, s, w.err, driver.CodeRefused)
		case <-time.After(testTimeout):
			t.Fatal("a waiter still waits at a server that evicts")
		}
		if a := s.Renew(t.Context(), []driver.Grant{held})[0]; a.Err != nil {
			t.Errorf("a holder cannot renew: %v", a.Err)
		}
		if err := s.Release(t.Context(), held, 0); err != nil {
			t.Errorf("a holder cannot release: %v", err)
		}
		do(t, r, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		release(t, s, acknowledgedSoon(t, s, library+"-new"))
	}
}

// TestPromotedReplicaThatEvictsIsRefused: a replica that evicts keys becomes the primary. The store
// refuses new locks.
func TestPromotedReplicaThatEvictsIsRefused(t *testing.T) {
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	do(t, g.Replicas[0], "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	p := behindProxy(t, g.Primary)
	s := open(t, "redis://"+p.Address())
	release(t, s, must(t, s, request("x", driver.Exclusive, long)))
	g.Primary.Kill()
	do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
	if err := p.Redirect(g.Replicas[0].Address()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store grants on a server that evicts", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		g, err := s.Acquire(ctx, request("x", driver.Exclusive, long))
		if err == nil {
			release(t, s, g)
		}
		return err != nil && s.Classify(err) == driver.CodeRefused && strings.Contains(err.Error(), "volatile-ttl")
	})
}

// clockedReplicas starts a primary and a replica. A test can set the clock of the replica.
func clockedReplicas(t *testing.T) *servers.RedisReplicas {
	t.Helper()
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	if err := g.Replicas[0].FakeClock(t.Context()); err != nil {
		servertest.Started(t, err)
	}
	if err := g.Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestLeaseOutlastsFailoverToClockAhead: a replica whose clock is ahead acknowledges every grant. After
// its promotion the holder's lease is still there.
func TestLeaseOutlastsFailoverToClockAhead(t *testing.T) {
	for _, library := range []string{"rueidis", "goredis"} {
		t.Run(library, func(t *testing.T) {
			g := clockedReplicas(t)
			if err := g.Replicas[0].SetClock(5 * time.Second); err != nil {
				t.Fatal(err)
			}
			p := behindProxy(t, g.Primary)
			var s driver.Store = open(t, "redis://"+p.Address()+"?replicas=1")
			if library == "goredis" {
				c := goredis.NewClient(&goredis.Options{Addr: p.Address()})
				defer c.Close()
				over, err := adapter.New(c, redisstore.WaitReplicas(1, time.Second))
				if err != nil {
					t.Fatal(err)
				}
				defer over.Close(context.Background())
				s = over
			}
			const ttl = 4 * time.Second
			held, err := s.Acquire(t.Context(), request("x", driver.Exclusive, ttl))
			if err != nil {
				t.Fatal(err)
			}
			shared := must(t, s, request("y", driver.Unlimited, ttl))
			if a := s.Renew(t.Context(), []driver.Grant{shared})[0]; a.Err != nil {
				t.Fatal(a.Err)
			}
			g.Primary.Kill()
			do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
			other := open(t, "redis://"+g.Replicas[0].Address())
			for _, name := range []string{"x", "y"} {
				_, err := other.Acquire(t.Context(), request(name, driver.Exclusive, ttl))
				if time.Since(held.SentAt.Time()) >= ttl {
					t.Skip("the machine is too slow: the lease has expired")
				}
				if err == nil {
					t.Errorf("%s is granted beside its holder, whose lease began %s ago", name, time.Since(held.SentAt.Time()))
				}
			}
		})
	}
}

// TestHeldLeaseGetsTimeOfClockAhead: a replica's clock is set ahead while a lock is held. The store
// lengthens the lease at once, without a renewal by the holder.
func TestHeldLeaseGetsTimeOfClockAhead(t *testing.T) {
	for layout, limit := range map[string]int{"": driver.Unlimited, "?layout=plain": driver.Exclusive} {
		t.Run(layout, func(t *testing.T) {
			g := clockedReplicas(t)
			url := "redis://" + g.Primary.Address() + layout
			s := open(t, url+map[bool]string{true: "?", false: "&"}[layout == ""]+"replicas=1")
			held := must(t, s, request("x", limit, long))
			if err := g.Replicas[0].SetClock(5 * time.Second); err != nil {
				t.Fatal(err)
			}
			for _, r := range g.All() {
				eventually(t, "the lease has no time for the clock that is ahead", func() bool {
					keys, _ := do(t, r, "KEYS", "*").([]any)
					for _, key := range keys {
						// The replica counts by its own clock.
						least := long + time.Second
						if r == g.Replicas[0] {
							least -= 5 * time.Second
						}
						if left, _ := do(t, r, "PTTL", key.(string)).(int64); left > least.Milliseconds() {
							return true
						}
					}
					return false
				})
			}
			release(t, s, held)
		})
	}
}

// TestReplicaFarAheadIsRefused: a replica's clock is set a minute ahead while the store is in use. The
// store lengthens leases by the difference of the clocks, up to a limit, and refuses more.
func TestReplicaFarAheadIsRefused(t *testing.T) {
	g := clockedReplicas(t)
	s := open(t, "redis://"+g.Primary.Address()+"?replicas=1")
	release(t, s, acknowledged(t, s, "x"))
	if err := g.Replicas[0].SetClock(time.Minute); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store grants although a replica is a minute ahead", func() bool {
		g, err := s.Acquire(t.Context(), request("x", driver.Exclusive, long))
		if err == nil {
			release(t, s, g)
		}
		return err != nil && s.Classify(err) == driver.CodeRefused && strings.Contains(err.Error(), "ahead")
	})
	if err := g.Replicas[0].SetClock(-time.Minute); err != nil {
		t.Fatal(err)
	}
	release(t, s, acknowledgedSoon(t, s, "x"))
}

// acknowledgedSoon repeats a request until the store has found that the server is safe again.
func acknowledgedSoon(t *testing.T, s driver.Store, name string) (g driver.Grant) {
	t.Helper()
	eventually(t, "the store does not grant any more", func() (ok bool) {
		var err error
		g, err = s.Acquire(t.Context(), request(name, driver.Exclusive, long))
		return err == nil
	})
	return g
}

// TestClusterNodeThatEvictsIsRefused: while the stores are in use, a server that evicts keys becomes the
// primary of a hash slot. First it is a promoted replica, then a new node of the cluster.
func TestClusterNodeThatEvictsIsRefused(t *testing.T) {
	installed(t)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	if err := c.SetNodeTimeout(t.Context(), time.Minute); err != nil { // a slow node is not replaced
		t.Fatal(err)
	}
	slot, err := c.Slot(t.Context(), redisstore.Key("", "x"))
	if err != nil {
		t.Fatal(err)
	}
	replica := c.Nodes[slot/(16384/3)+3]
	stores := map[string]driver.Store{}
	for library, open := range clients(t, "redis+cluster://"+c.Nodes[0].Address(), func() goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{c.Nodes[0].Address()}})
	}) {
		stores[library] = open()
		release(t, stores[library], must(t, stores[library], request("x", driver.Exclusive, long)))
	}
	grants := func(s driver.Store) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		g, err := s.Acquire(ctx, request("x", driver.Exclusive, long))
		if err == nil {
			release(t, s, g)
		}
		return err
	}
	refused := func(policy string) {
		t.Helper()
		for library, s := range stores {
			eventually(t, library+" grants on a server that evicts", func() bool {
				err := grants(s)
				return err != nil && s.Classify(err) == driver.CodeRefused && strings.Contains(err.Error(), policy)
			})
		}
	}
	do(t, replica, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	var began time.Time
	eventually(t, "the replica does not become the primary", func() bool {
		// A replica gives up a failover after 5 s. The test starts a new one only after that time,
		// because a new failover begins from the start. A primary refuses the command.
		if time.Since(began) > 6*time.Second {
			began = time.Now()
			_, _ = replica.Do(t.Context(), "CLUSTER", "FAILOVER")
		}
		owner, err := c.Owner(t.Context(), slot)
		return err == nil && owner == replica
	})
	refused("volatile-lru")
	do(t, replica, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	for library, s := range stores {
		eventually(t, library+" refuses locks that no server evicts", func() bool { return grants(s) == nil })
	}
	joined, err := c.Join(t.Context(), t.TempDir(), "--maxmemory-policy", "volatile-ttl")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.BeginMove(t.Context(), slot, replica, joined), c.EndMove(t.Context(), slot, replica, joined)); err != nil {
		t.Fatal(err)
	}
	refused("volatile-ttl")
}
