package redis

import (
	"context"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// clients returns functions that open stores over both client libraries.
func clients(t *testing.T, url string, client func() goredis.UniversalClient) map[string]func() driver.Store {
	return map[string]func() driver.Store{
		"rueidis": func() driver.Store { return open(t, url) },
		"goredis": func() driver.Store {
			c := client()
			s, err := adapter.New(c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = s.Close(context.Background())
				_ = c.Close()
			})
			return s
		},
	}
}

// renewed renews until the server answers. While roles change it may not answer.
func renewed(t *testing.T, s driver.Store, g driver.Grant) driver.Renewal {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		a := s.Renew(ctx, []driver.Grant{g})[0]
		cancel()
		if a.Err == nil || s.Classify(a.Err) == driver.CodeNotHeld {
			return a
		}
		if time.Now().After(end) {
			t.Fatal(a.Err)
		}
	}
}

// release releases a grant, and repeats that until the server answers.
func release(t *testing.T, s driver.Store, g driver.Grant) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := s.Release(ctx, g, 0)
		cancel()
		if err == nil || s.Classify(err) == driver.CodeNotHeld {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// slotMove returns the hash slot of a key, the node that has the slot, and another node.
func slotMove(t *testing.T, c *servers.RedisCluster, key string) (slot int, from, to *servers.Redis) {
	t.Helper()
	slot, err := c.Slot(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if from, err = c.Owner(t.Context(), slot); err != nil {
		t.Fatal(err)
	}
	if to = c.Nodes[0]; to == from {
		to = c.Nodes[1]
	}
	return slot, from, to
}

// TestLocksWorkWhileSlotMoves: clients take, wait for, renew and release names while the hash slot of
// those names moves, key by key.
func TestLocksWorkWhileSlotMoves(t *testing.T) {
	c := cluster(t)
	for library, client := range clients(t, "redis+cluster://"+c.Nodes[0].Address(), func() goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{c.Nodes[0].Address()}})
	}) {
		t.Run(library, func(t *testing.T) {
			a, b := client(), client()
			name := "moving-" + library
			key := redisstore.Key("", name)
			counter := key[:len("holdfast:{000}")]
			slot, from, to := slotMove(t, c, key)
			g := must(t, a, request(name, driver.Exclusive, long))
			w := queue(t, b, request(name, driver.Exclusive, long))
			move := func(key string) {
				t.Helper()
				if err := c.MoveKey(t.Context(), key, from, to); err != nil {
					t.Fatal(err)
				}
			}
			pair := func(last driver.Grant) driver.Grant {
				t.Helper()
				// The name is free: it has no key, and one node has its counter.
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				g, err := a.Acquire(ctx, request(name, driver.Exclusive, long))
				if err != nil {
					t.Fatalf("a new lock in the middle of a move: %v", err)
				}
				if g.Token <= last.Token {
					t.Errorf("token %d after %d", g.Token, last.Token)
				}
				release(t, a, g)
				return g
			}
			if err := c.BeginMove(t.Context(), slot, from, to); err != nil {
				t.Fatal(err)
			}
			if r := renewed(t, a, g); r.Err != nil {
				t.Fatal(r.Err)
			}
			move(counter) // now the counter and the name are on two nodes
			if r := renewed(t, a, g); r.Err != nil {
				t.Fatal(r.Err)
			}
			w.pending()
			release(t, a, g)
			next := w.granted()
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			release(t, b, next)
			last := pair(pair(next))
			g = must(t, a, request(name, driver.Exclusive, long))
			if g.Token <= last.Token {
				t.Errorf("token %d after %d", g.Token, last.Token)
			}
			w = queue(t, b, request(name, driver.Exclusive, long))
			if err := c.EndMove(t.Context(), slot, from, to); err != nil {
				t.Fatal(err)
			}
			if r := renewed(t, a, g); r.Err != nil {
				t.Fatal(r.Err)
			}
			release(t, a, g)
			next = w.granted()
			release(t, b, next)
			pair(next)
		})
	}
}

// TestClusterFailoverKeepsLock kills the primary of a name that has a holder and a waiter. The replica
// had the grant. After the failover the holder keeps it, and the waiter is next.
func TestClusterFailoverKeepsLock(t *testing.T) {
	installed(t)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	for library, client := range clients(t, "redis+cluster://"+c.Nodes[0].Address()+"?addr="+c.Nodes[1].Address()+"&addr="+c.Nodes[2].Address(), func() goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{c.Nodes[0].Address(), c.Nodes[1].Address(), c.Nodes[2].Address()}})
	}) {
		t.Run(library, func(t *testing.T) {
			name := "failing-" + library
			slot, err := c.Slot(t.Context(), redisstore.Key("", name))
			if err != nil {
				t.Fatal(err)
			}
			failover(t, client, name, func() {
				primary, err := c.Owner(t.Context(), slot)
				if err != nil {
					t.Fatal(err)
				}
				caughtUp(t, primary, 1)
				primary.Kill()
				t.Cleanup(func() { // the test over the other library needs this node
					if err := primary.Restart(context.Background()); err != nil {
						t.Error(err)
					}
					if err := c.Whole(context.Background()); err != nil {
						t.Error(err)
					}
				})
			})
		})
	}
}

// sentinels starts a primary with two replicas, and sentinels that watch them.
func sentinels(t *testing.T) (s *servers.RedisSentinel, url string, addresses []string) {
	t.Helper()
	installed(t)
	s, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	url = "redis+sentinel://" + s.Sentinels[0].Address() + "/" + s.Name
	for i, r := range s.Sentinels {
		addresses = append(addresses, r.Address())
		if i > 0 {
			url += map[bool]string{true: "?", false: "&"}[i == 1] + "addr=" + r.Address()
		}
	}
	return s, url, addresses
}

// replacePrimary kills the primary when its replicas have all that it has, and waits until
// the sentinels have replaced it.
func replacePrimary(t *testing.T, s *servers.RedisSentinel) {
	t.Helper()
	primary, err := s.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	caughtUp(t, primary, 2)
	primary.Kill()
	if _, err := s.FailedOver(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if err := primary.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSentinelFailoverKeepsLock(t *testing.T) {
	s, url, addresses := sentinels(t)
	for library, client := range clients(t, url, func() goredis.UniversalClient {
		return goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: s.Name, SentinelAddrs: addresses})
	}) {
		t.Run(library, func(t *testing.T) {
			failover(t, client, "failing-"+library, func() { replacePrimary(t, s) })
		})
	}
}

// TestSentinelFailoverKeepsLayoutLocks replaces the primary while a name of each layout has a holder and
// a waiter.
func TestSentinelFailoverKeepsLayoutLocks(t *testing.T) {
	s, url, _ := sentinels(t)
	var after []func()
	for _, l := range redisstore.Layouts() {
		after = append(after, holdAndWait(t, func() driver.Store { return open(t, url, withLayout(l)...) }, "failing-"+string(l)))
	}
	replacePrimary(t, s)
	for _, f := range after {
		f()
	}
	primary, err := s.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range redisstore.Layouts() {
		for _, left := range remnants(t, l, primary) {
			if name := "failing-" + string(l); strings.Contains(left, name+`"`) || strings.Contains(left, name+"}") {
				t.Errorf("%s: a key remains: %s", l, left)
			}
		}
	}
}

// caughtUp waits until so many replicas have all that the primary has. WAIT counts only the writes of
// its own connection.
func caughtUp(t *testing.T, primary *servers.Redis, replicas int) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		info, err := primary.Info(t.Context(), "replication")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for k, v := range info {
			if strings.HasPrefix(k, "slave") && strings.Contains(v, "offset="+info["master_repl_offset"]+",") {
				n++
			}
		}
		if n >= replicas {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the replicas do not follow: %v", info)
		}
	}
}

// failover calls lose while a name has a holder and a waiter.
func failover(t *testing.T, client func() driver.Store, name string, lose func()) {
	after := holdAndWait(t, client, name)
	lose()
	after()
}

// holdAndWait gives a name a holder and a waiter. It returns a function that requires that the holder
// still has its grant, and that the waiter gets the next one.
func holdAndWait(t *testing.T, client func() driver.Store, name string) (after func()) {
	a, b := client(), client()
	const ttl = 10 * time.Minute // longer than a failover takes on a slow machine
	g := must(t, a, request(name, driver.Exclusive, ttl))
	w := queue(t, b, request(name, driver.Exclusive, ttl))
	return func() {
		if r := renewed(t, a, g); r.Err != nil {
			t.Fatalf("the holder has lost its grant, which the replica had: %v", r.Err)
		}
		w.pending()
		release(t, a, g)
		next := w.granted()
		if next.Token <= g.Token {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
		release(t, b, next)
	}
}
