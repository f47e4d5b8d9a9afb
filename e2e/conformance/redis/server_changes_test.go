package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestEvictionThatBeginsLaterIsRefused: an operator changes the server's eviction policy while the store
// is in use. The store refuses new locks and waiters until the operator restores the policy. A holder
// can still renew and release.
func TestEvictionThatBeginsLaterIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t)
	url := "redis://" + r.Address()
	s := open(t, url)
	held := must(t, s, request("held", driver.Exclusive, long))
	w := submit(t, s, request("held", driver.Exclusive, long))
	do(t, r, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	refusedSoon(t, s, "new", "allkeys-lru")
	code(t, s, w.Ended(), driver.CodeRefused)
	if a := s.Renew(t.Context(), []driver.Grant{held})[0]; a.Err != nil {
		t.Errorf("a holder cannot renew: %v", a.Err)
	}
	if err := s.Release(t.Context(), held, 0); err != nil {
		t.Errorf("a holder cannot release: %v", err)
	}
	do(t, r, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	release(t, s, acknowledgedSoon(t, s, "new"))
}

// TestPromotedReplicaThatEvictsIsRefused: a replica that evicts keys becomes the primary. The store
// refuses new locks.
func TestPromotedReplicaThatEvictsIsRefused(t *testing.T) {
	t.Parallel()
	g := replicas(t)
	do(t, g.Replicas[0], "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	p := proxy(t, g.Primary)
	s := open(t, "redis://"+p.Address())
	release(t, s, must(t, s, request("x", driver.Exclusive, long)))
	g.Primary.Kill()
	do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
	check(t, p.Redirect(g.Replicas[0].Address()))
	refusedSoon(t, s, "x", "volatile-ttl")
}

// clockedReplicas starts a primary and a replica. A test can set the clock of the replica.
func clockedReplicas(t *testing.T) *servers.RedisReplicas {
	t.Helper()
	g := replicas(t)
	if err := g.Replicas[0].FakeClock(t.Context()); err != nil {
		servertest.Started(t, err)
	}
	check(t, g.Linked(t.Context()))
	return g
}

// TestLeaseOutlastsFailoverToClockAhead: a replica whose clock is ahead acknowledges every grant. After
// its promotion the holder's lease is still there.
func TestLeaseOutlastsFailoverToClockAhead(t *testing.T) {
	t.Parallel()
	g := clockedReplicas(t)
	check(t, g.Replicas[0].SetClock(5*time.Second))
	p := proxy(t, g.Primary)
	s := open(t, "redis://"+p.Address()+"?replicas=1")
	const ttl = 4 * time.Second
	held, err := s.Acquire(t.Context(), request("x", driver.Exclusive, ttl))
	check(t, err)
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
}

// TestHeldLeaseGetsTimeOfClockAhead: a replica's clock is set ahead while a lock is held. The store
// lengthens the lease at once, without a renewal by the holder.
func TestHeldLeaseGetsTimeOfClockAhead(t *testing.T) {
	t.Parallel()
	for layout, c := range map[string]struct {
		limit int
		open  func(url string) store
	}{
		"native": {driver.Unlimited, func(url string) store { return open(t, url) }},
		"plain":  {driver.Exclusive, func(url string) store { return openLayout(t, url, layouts.Plain) }},
	} {
		t.Run(layout, func(t *testing.T) {
			g := clockedReplicas(t)
			s := c.open("redis://" + g.Primary.Address() + "?replicas=1")
			held := must(t, s, request("x", c.limit, long))
			check(t, g.Replicas[0].SetClock(5*time.Second))
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
	t.Parallel()
	g := clockedReplicas(t)
	s := open(t, "redis://"+g.Primary.Address()+"?replicas=1")
	release(t, s, acknowledged(t, s, "x"))
	check(t, g.Replicas[0].SetClock(time.Minute))
	refusedSoon(t, s, "x", "ahead")
	check(t, g.Replicas[0].SetClock(-time.Minute))
	release(t, s, acknowledgedSoon(t, s, "x"))
}

// refusedSoon repeats a request until the store has found that the server is not safe any more.
func refusedSoon(t *testing.T, s driver.Store, name, reason string) {
	t.Helper()
	eventually(t, "the store refuses new locks: "+reason, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		g, err := s.Acquire(ctx, request(name, driver.Exclusive, long))
		if err == nil {
			release(t, s, g)
		}
		return err != nil && s.Classify(err) == driver.CodeRefused && strings.Contains(err.Error(), reason)
	})
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
	t.Parallel()
	c := ownCluster(t, true)
	check(t, c.SetNodeTimeout(t.Context(), time.Minute)) // a slow node is not replaced
	slot, err := c.Slot(t.Context(), redisstore.Key("", "x"))
	check(t, err)
	replica := c.Nodes[slot/(16384/3)+3]
	s := open(t, "redis+cluster://"+c.Nodes[0].Address())
	release(t, s, must(t, s, request("x", driver.Exclusive, long)))
	do(t, replica, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	// The replica takes over without votes: a refused election may not begin again for four node timeouts.
	do(t, replica, "CLUSTER", "FAILOVER", "TAKEOVER")
	eventually(t, "the replica does not become the primary", func() bool {
		owner, err := c.Owner(t.Context(), slot)
		return err == nil && owner == replica
	})
	refusedSoon(t, s, "x", "volatile-lru")
	do(t, replica, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	release(t, s, acknowledgedSoon(t, s, "x"))
	joined, err := c.Join(t.Context(), t.TempDir(), "--maxmemory-policy", "volatile-ttl")
	check(t, err)
	check(t, errors.Join(c.BeginMove(t.Context(), slot, replica, joined), c.EndMove(t.Context(), slot, replica, joined)))
	refusedSoon(t, s, "x", "volatile-ttl")
}
