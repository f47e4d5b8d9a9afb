package zookeeper

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/zkstore"
)

// counted is a connection that counts the watch events that it receives. The header of an event has -1 as its xid and
// as its zxid, and no error.
type counted struct {
	net.Conn
	events *atomic.Int64
}

var eventHeader = append(bytes.Repeat([]byte{0xff}, 12), 0, 0, 0, 0)

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.events.Add(int64(bytes.Count(b[:n], eventHeader)))
	return n, err
}

// TestReleaseWakesNearestWaiters: 100 waiters have 100 sessions. One release wakes the next waiter
// and the waiter behind it, which then reads the queue before its turn.
func TestReleaseWakesNearestWaiters(t *testing.T) {
	z := single(t)
	const waiters, releases = 100, 20
	// The sessions of granted requests receive events, and so does that of the next request. The
	// other sessions receive none.
	var next, others atomic.Int64
	// No lock is renewed: the first grant lasts until all have queued.
	store := func(events *atomic.Int64) *zkstore.Store {
		count := dialing(func(c net.Conn) net.Conn { return counted{c, events} })
		return requests.Closing(t, open(t, []string{z.Address()}, zkstore.Root("/herd"), count))
	}
	holder := store(&next)
	g := requests.Must(t, holder, exclusive("herd", 2*time.Minute))
	queue := make([]*requests.Waiter, waiters)
	stores := make([]*zkstore.Store, waiters)
	for i := range queue {
		if i <= releases {
			stores[i] = store(&next)
		} else {
			stores[i] = store(&others)
		}
		queue[i] = requests.Queue(t, stores[i], exclusive("herd", 2*time.Minute))
	}
	if n := next.Load() + others.Load(); n != 0 {
		t.Errorf("%d watch events while they queued", n)
	}
	for i, s := 0, holder; i < releases; i++ {
		must(t, s.Release(t.Context(), g, 0))
		g, s = queue[i].Granted(), stores[i]
	}
	if n := others.Load(); n != 0 {
		t.Errorf("%d releases sent %d events to waiters that were not next", releases, n)
	}
	for i := releases - 1; i < waiters; i++ {
		must(t, stores[i].Release(t.Context(), g, 0))
		if i+1 < waiters {
			g = queue[i+1].Granted()
		}
	}
}
