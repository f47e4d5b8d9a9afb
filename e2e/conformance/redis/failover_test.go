package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// slotMove returns the hash slot of a key, the node that has the slot, and another node.
func slotMove(t *testing.T, c *servers.RedisCluster, key string) (slot int, from, to *servers.Redis) {
	t.Helper()
	slot, err := c.Slot(t.Context(), key)
	check(t, err)
	if from, err = c.Owner(t.Context(), slot); err != nil {
		t.Fatal(err)
	}
	if to = c.Nodes[0]; to == from {
		to = c.Nodes[1]
	}
	return slot, from, to
}

// TestLocksWorkWhileSlotsMove makes each call of the contract for names whose hash slots move. Meanwhile all keys of
// a name are still on the first node, or its counter of tokens or its own key is on the second one.
func TestLocksWorkWhileSlotsMove(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, false)
	// All slots move to this node. If several nodes received slots at the same time, two could claim the same epoch of
	// the configuration, and Redis could delete what one of them has received.
	joined, err := c.Join(t.Context(), t.TempDir())
	check(t, err)
	before := c.Nodes[:len(c.Nodes)-1]
	restrict(t, c.Nodes, "cluster", "asking")
	open := opening("redis+cluster://app:app-secret@" + c.Nodes[0].Address())
	type moving struct {
		slot int
		key  string
		from *servers.Redis
	}
	var all []moving
	// settled reports whether all nodes know where the slots are.
	settled := func() bool {
		for _, m := range all {
			for _, node := range c.Nodes {
				_, err := node.Do(t.Context(), "EXISTS", m.key)
				if node == joined && err != nil ||
					node != joined && (err == nil || !strings.HasSuffix(err.Error(), joined.Address())) {
					return false
				}
			}
		}
		return true
	}
	begin := func(moves func(key string) bool) func(testing.TB) {
		return func(t testing.TB) {
			keys := map[*servers.Redis][]string{}
			for _, from := range before {
				keys[from] = strungTogether(do(t, from, "KEYS", "holdfast:{???}*"))
			}
			all = nil
			begun := map[int]bool{}
			for _, from := range before {
				for _, key := range keys[from] {
					slot, err := c.Slot(t.Context(), key)
					check(t, err)
					if !begun[slot] {
						check(t, c.BeginMove(t.Context(), slot, from, joined))
						all = append(all, moving{slot, key, from})
					}
					begun[slot] = true
					if moves(key) {
						check(t, c.MoveKey(t.Context(), key, from, joined))
					}
				}
			}
		}
	}
	isCounter := func(key string) bool { return strings.HasSuffix(key, "}") }
	var moves []drivertest.Refusal
	for name, moved := range map[string]func(string) bool{
		"no key moved":   func(string) bool { return false },
		"counters moved": isCounter,
		"names moved":    func(key string) bool { return !isCounter(key) },
	} {
		moves = append(moves, drivertest.Refusal{Name: name, Begin: begin(moved), Unnoticed: true, Succeed: []string{""},
			End: func(t testing.TB) {
				for _, m := range all {
					check(t, c.EndMove(t.Context(), m.slot, m.from, joined))
				}
				eventually(t, "all nodes know the slots' new owners", settled)
			}})
	}
	drivertest.Refusals(t, drivertest.Harness{TTL: ttl, Open: func(t testing.TB, namespace string) driver.Store {
		s, err := open(namespace)
		check(t, err)
		return s
	}}, kept(t, open)(), moves...)
}

// TestClusterFailoverKeepsLock kills the primary of a name that has a holder and a waiter. The replica
// had the grant. After the failover the holder keeps it, and the waiter is next.
func TestClusterFailoverKeepsLock(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, true)
	client := func() driver.Store {
		return open(t, "redis+cluster://"+c.Nodes[0].Address()+"?addr="+c.Nodes[1].Address()+"&addr="+c.Nodes[2].Address())
	}
	name := "failing"
	slot, err := c.Slot(t.Context(), redisstore.Key("", name))
	check(t, err)
	failover(t, client, name, func() {
		primary, err := c.Owner(t.Context(), slot)
		check(t, err)
		caughtUp(t, primary, 1)
		primary.Kill()
	})
}

// sentinels starts a primary with two replicas, and sentinels that watch them.
func sentinels(t *testing.T) (s *servers.RedisSentinel, url string) {
	t.Helper()
	installed(t)
	s, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 2)
	check(t, err)
	t.Cleanup(s.Kill)
	url = "redis+sentinel://" + s.Sentinels[0].Address() + "/" + s.Name
	for i, r := range s.Sentinels {
		if i > 0 {
			url += map[bool]string{true: "?", false: "&"}[i == 1] + "addr=" + r.Address()
		}
	}
	return s, url
}

// replacePrimary kills the primary when its replicas have all that it has, and waits until
// the sentinels have replaced it.
func replacePrimary(t *testing.T, s *servers.RedisSentinel) {
	t.Helper()
	primary, err := s.Current(t.Context())
	check(t, err)
	caughtUp(t, primary, 2)
	primary.Kill()
	if _, err := s.FailedOver(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	check(t, primary.Restart(t.Context()))
}

// TestSubscriptionLeavesFormerPrimary replaces a living primary that the sentinels cannot demote. The
// client of a waiter subscribes to the new primary, whose messages the former one does not get.
func TestSubscriptionLeavesFormerPrimary(t *testing.T) {
	t.Parallel()
	s, url := sentinels(t)
	former, err := s.Current(t.Context())
	check(t, err)
	const name = "followed"
	g := must(t, open(t, url), request(name, driver.Exclusive, 10*time.Minute))
	w := queue(t, open(t, url), request(name, driver.Exclusive, long))
	awaitSubscription(t, former)
	do(t, former, "ACL", "SETUSER", "default", "-replicaof", "-slaveof")
	caughtUp(t, former, 2)
	check(t, s.Failover(t.Context()))
	primary, err := s.FailedOver(t.Context(), former)
	check(t, err)
	awaitSubscription(t, primary)
	w.Pending()
	check(t, open(t, url).Break(t.Context(), name, g.Token))
	w.Granted()
}

// awaitSubscription waits until a client of a store is subscribed at a server.
func awaitSubscription(t *testing.T, r *servers.Redis) {
	t.Helper()
	eventually(t, "a client has subscribed", func() bool {
		channels, _ := do(t, r, "PUBSUB", "CHANNELS", "holdfast:*").([]any)
		return len(channels) > 0
	})
}

// TestSentinelFailoverKeepsLocks replaces the primary while a name of the store, and one of each layout, has a holder
// and a waiter.
func TestSentinelFailoverKeepsLocks(t *testing.T) {
	t.Parallel()
	s, url := sentinels(t)
	after := []func(){holdAndWait(t, func() driver.Store { return open(t, url) }, "failing")}
	for _, l := range layouts.All() {
		after = append(after, holdAndWait(t, func() driver.Store { return openLayout(t, url, l, withFairWait(l)...) }, "failing-"+string(l)))
	}
	replacePrimary(t, s)
	for _, f := range after {
		f()
	}
	primary, err := s.Current(t.Context())
	check(t, err)
	for _, l := range layouts.All() {
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
	eventually(t, "the replicas follow", func() bool {
		info, err := primary.Info(t.Context(), "replication")
		check(t, err)
		n := 0
		for k, v := range info {
			if strings.HasPrefix(k, "slave") && strings.Contains(v, "offset="+info["master_repl_offset"]+",") {
				n++
			}
		}
		return n >= replicas
	})
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
		w.Pending()
		release(t, a, g)
		next := w.Granted()
		rises(t, g, next)
		release(t, b, next)
	}
}
