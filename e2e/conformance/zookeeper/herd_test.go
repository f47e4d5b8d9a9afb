package zookeeper

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// counter counts the watch events on their way to clients: frames with the xid -1.
type counter struct {
	events  atomic.Int64
	address string
}

// counted starts a proxy that counts the events of a server.
func counted(t *testing.T, upstream string) *counter {
	t.Helper()
	c := &counter{}
	c.address = serve(t, loopback(t), func(client net.Conn) { passOn(client, upstream, c.answers) })
	return c
}

func (c *counter) answers(to io.Writer, from io.Reader) {
	head := make([]byte, 8)
	for first := true; ; first = false {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		if !first && int32(binary.BigEndian.Uint32(head[4:])) == -1 {
			c.events.Add(1)
		}
		if _, err := to.Write(head); err != nil {
			return
		}
		if _, err := io.CopyN(to, from, int64(binary.BigEndian.Uint32(head))-4); err != nil {
			return
		}
	}
}

// queuedRequest is a requester of the driver that reports its queue entry.
type queuedRequest struct {
	queued  chan struct{}
	granted chan driver.Grant
	once    sync.Once
}

func (*queuedRequest) Owner() driver.Owner      { return driver.Owner{ID: "herd"} }
func (a *queuedRequest) Queued([]driver.Holder) { a.once.Do(func() { close(a.queued) }) }
func (*queuedRequest) Lost(driver.Cause, error) {}

// woken returns the grant of the request.
func (a *queuedRequest) woken(t *testing.T) driver.Grant {
	t.Helper()
	select {
	case g := <-a.granted:
		return g
	case <-time.After(testTimeout):
		t.Fatal("it was not woken")
		return driver.Grant{}
	}
}

// TestReleaseWakesNearestWaiters: 500 waiters have 500 sessions. One release wakes the next waiter
// and the waiter behind it, which then reads the queue before its turn.
func TestReleaseWakesNearestWaiters(t *testing.T) {
	z := single(t)
	const waiters, releases = 500, 20
	// The sessions of granted requests receive events, and so does that of the next request. The
	// other sessions receive none.
	next, others := counted(t, z.Address()), counted(t, z.Address())
	// No lock is renewed: the first grant lasts until all have queued.
	request := func(i int, wait bool) (driver.Request, *queuedRequest) {
		a := &queuedRequest{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
		return driver.Request{ID: "herd-" + newName(), Name: "herd", Limit: driver.Exclusive, TTL: 2 * time.Minute, Wait: wait, From: a}, a
	}
	store := func(c *counter) *zkstore.Store {
		s := open(t, []string{c.address}, zkstore.Root("/herd"))
		t.Cleanup(func() {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	holder := store(next)
	r, _ := request(0, true)
	g, err := holder.Acquire(t.Context(), r)
	must(t, err)
	queue := make([]*queuedRequest, waiters)
	stores := make([]*zkstore.Store, waiters)
	var done sync.WaitGroup
	defer done.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // a failed test does not wait for grants
	for i := range queue {
		if i <= releases {
			stores[i] = store(next)
		} else {
			stores[i] = store(others)
		}
		r, a := request(i, true)
		queue[i] = a
		done.Go(func() {
			g, err := stores[i].Acquire(ctx, r)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
			a.granted <- g
		})
		select {
		case <-a.queued:
		case <-a.granted:
			t.Fatalf("waiter %d does not wait", i)
		}
	}
	if n := next.events.Load() + others.events.Load(); n != 0 {
		t.Errorf("%d watch events while they queued", n)
	}
	for i, s := 0, holder; i < releases; i++ {
		must(t, s.Release(t.Context(), g, 0))
		g, s = <-queue[i].granted, stores[i]
	}
	if n := others.events.Load(); n != 0 {
		t.Errorf("%d releases sent %d events to waiters that were not next", releases, n)
	}
	for i := releases - 1; i < waiters; i++ {
		must(t, stores[i].Release(t.Context(), g, 0))
		if i+1 < waiters {
			g = <-queue[i+1].granted
		}
	}
}
