package etcd

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// checksSince returns how many checks of its granted entries a session may have made since then. A
// session makes one check a second.
func checksSince(since time.Time) int64 { return int64(time.Since(since)/time.Second) + 1 }

// counted opens a store, and counts the store's requests to the key space.
func (c *cluster) counted(t *testing.T) (*etcdstore.Store, *atomic.Int64) {
	t.Helper()
	var n atomic.Int64
	s := over(t, c.direct(t, unary(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if strings.HasPrefix(method, "/etcdserverpb.KV/") {
				n.Add(1)
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		})))
	return s, &n
}

// TestRequestsOfLockAndWait: a free name costs two requests, a lock and a release. The first
// waiter sends no further request. A waiter far back reads the queue once more, when all earlier
// entries but one have gone.
func TestRequestsOfLockAndWait(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, n := c.counted(t)
	g := must(t, s, request("n", 1, time.Minute))
	check(t, s.Release(t.Context(), g, 0))
	cost := func(what string, want int64, f func()) {
		t.Helper()
		before, began := n.Load(), time.Now()
		f()
		if got, more := n.Load()-before, checksSince(began); got > want+more {
			t.Errorf("%s cost %d requests, want %d and at most %d checks", what, got, want, more)
		}
	}
	cost("20 free locks", 40, func() {
		for range 20 {
			r := request("n", 1, time.Minute)
			r.Wait = true
			check(t, s.Release(t.Context(), must(t, s, r), 0))
		}
	})

	g = must(t, s, request("n", 1, time.Minute))
	own := queue(t, s, request("n", 1, time.Minute))
	// One request is the release. The other is the read that follows the creation of a watch.
	cost("a release with a waiter", 2, func() {
		check(t, s.Release(t.Context(), g, 0))
		g = own.Granted()
	})

	// Another client makes ten queue entries first.
	other := c.open(t)
	var line []*requests.Waiter
	for range 10 {
		line = append(line, queue(t, other, request("n", 1, time.Minute)))
	}
	far, sent := c.counted(t)
	last := queue(t, far, request("n", 1, time.Minute))
	check(t, s.Release(t.Context(), g, 0))
	var held driver.Grant
	var began time.Time
	for i, w := range line {
		if i > 0 {
			check(t, other.Release(t.Context(), held, 0))
		}
		held = w.Granted()
		if i == 0 {
			began = time.Now()
			sent.Store(0)
		}
	}
	// The waiter may send three requests. The first is the read that follows the creation of its watch,
	// and may come this late. The second is the read after all but one of the earlier entries have gone.
	// The third is the read that follows the creation of the next watch.
	if got := sent.Load(); got > 3+checksSince(began) {
		t.Errorf("a waiter far back sent %d requests while nine before it were served", got)
	}
	check(t, other.Release(t.Context(), held, 0))
	last.Granted()
}

// TestNextEntryNeedsNoRead: a client queues again and again for one name. Its watch of the name stays, so
// each time it sends two requests: its entry and its release.
func TestNextEntryNeedsNoRead(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, n := c.counted(t)
	other := c.open(t)
	held := must(t, other, request("n", 1, time.Hour))
	const rounds = 60
	var began time.Time
	for i := range rounds + 1 {
		if i == 1 { // the first entry makes the watch
			began = time.Now()
			n.Store(0)
		}
		next := queue(t, s, request("n", 1, time.Hour))
		release(t, other, held)
		got := next.Granted()
		again := queue(t, other, request("n", 1, time.Hour))
		release(t, s, got)
		held = again.Granted()
	}
	// If the watch was unused for a second, the client makes a new one and then reads the queue.
	if most := 2*rounds + 3*checksSince(began); n.Load() > most {
		t.Errorf("%d entries and releases took %d requests, want %d at most", rounds, n.Load(), most)
	}
}
