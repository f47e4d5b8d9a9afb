package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
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
	g := must(t, s, request("warm", "n", 1, time.Minute))
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	cost := func(what string, want int64, f func()) {
		t.Helper()
		before, began := n.Load(), time.Now()
		f()
		if got, more := n.Load()-before, checksSince(began); got > want+more {
			t.Errorf("%s cost %d requests, want %d and at most %d checks", what, got, want, more)
		}
	}
	cost("20 free locks", 40, func() {
		for i := range 20 {
			r := request(fmt.Sprint("free", i), "n", 1, time.Minute)
			r.Wait = true
			if err := s.Release(t.Context(), must(t, s, r), 0); err != nil {
				t.Fatal(err)
			}
		}
	})

	g = must(t, s, request("first", "n", 1, time.Minute))
	own := waitIn(t, s, request("own", "n", 1, time.Minute))
	// One request is the release. The other is the read that follows the creation of a watch.
	cost("a release with a waiter", 2, func() {
		if err := s.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		res := receive(t, "the grant", own)
		if res.err != nil {
			t.Fatal(res.err)
		}
		g = res.g
	})

	// Another client makes ten queue entries first.
	other := c.open(t)
	var line []<-chan result
	for i := range 10 {
		line = append(line, waitIn(t, other, request(fmt.Sprint("before", i), "n", 1, time.Minute)))
	}
	far, requests := c.counted(t)
	last := waitIn(t, far, request("last", "n", 1, time.Minute))
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	var held driver.Grant
	var began time.Time
	for i, w := range line {
		if i > 0 {
			if err := other.Release(t.Context(), held, 0); err != nil {
				t.Fatal(err)
			}
		}
		res := receive(t, "a grant", w)
		if res.err != nil {
			t.Fatal(res.err)
		}
		held = res.g
		if i == 0 {
			began = time.Now()
			requests.Store(0)
		}
	}
	// The waiter may send three requests. The first is the read that follows the creation of its watch,
	// and may come this late. The second is the read after all but one of the earlier entries have gone.
	// The third is the read that follows the creation of the next watch.
	if got := requests.Load(); got > 3+checksSince(began) {
		t.Errorf("a waiter far back sent %d requests while nine before it were served", got)
	}
	if err := other.Release(t.Context(), held, 0); err != nil {
		t.Fatal(err)
	}
	if res := receive(t, "the last grant", last); res.err != nil {
		t.Fatal(res.err)
	}
}
