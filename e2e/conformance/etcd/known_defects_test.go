package etcd

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

func locker(t *testing.T, s driver.Store) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(s)
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestNameIgnoresKeysBelow: "a" does not wait for "a/b", nor "a/b" for "a", whatever the first
// reads of a busy queue return (etcd issue 6278).
func TestNameIgnoresKeysBelow(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, o := c.open(t), c.open(t)
	names := []string{"a", "a/b", "a/b/c", "a/", "/a", "a//b"}
	for _, limit := range []int{driver.Exclusive, 3, driver.Unlimited} {
		var held, waited []driver.Grant
		for _, n := range names {
			held = append(held, must(t, s, request(n, driver.Exclusive, time.Minute)))
		}
		for i, n := range names {
			w := queue(t, o, request(n, limit, time.Minute))
			check(t, s.Release(t.Context(), held[i], 0))
			waited = append(waited, w.Granted())
		}
		for i, n := range names {
			st, err := o.Inspect(t.Context(), n)
			if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != waited[i].ID {
				t.Fatalf("%q: %+v, %v", n, st, err)
			}
			check(t, o.Break(t.Context(), n, st.Holders[0].Token))
		}
	}
}

// TestCompactionDisturbsNoWaiter: waiters are granted after a compaction (etcd issue 9715).
func TestCompactionDisturbsNoWaiter(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g := must(t, s, request("n", 1, time.Minute))
	first := queue(t, c.open(t), request("n", 1, time.Minute))
	second := queue(t, c.open(t), request("n", 2, time.Minute))
	for range 10 {
		put, err := client.Put(t.Context(), "unrelated", "x")
		check(t, err)
		_, err = client.Compact(t.Context(), put.Header.Revision, clientv3.WithCompactPhysical())
		check(t, err)
	}
	// The client must create its watches again.
	for _, p := range c.proxies {
		p.Cut()
		check(t, p.Heal())
	}
	release(t, s, g)
	first.Granted()
	client.Delete(t.Context(), "n/", clientv3.WithPrefix())
	_ = second.Ended()
}

// TestWaiterWithoutLeaseIsNotGranted: a waiter's own lease has ended. The store does not grant the
// lock to this waiter, and the Locker queues again (etcd issue 19597).
func TestWaiterWithoutLeaseIsNotGranted(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g := must(t, s, request("n", 1, time.Minute))
	w := queue(t, c.open(t), request("n", 1, time.Minute))
	revoke(t, client, "n")
	l := locker(t, c.open(t))
	locked := make(chan error, 1)
	go func() { locked <- l.Do(t.Context(), "n", func(context.Context) error { return nil }) }()
	eventually(t, "the Locker waits", func() bool {
		st, err := s.Inspect(t.Context(), "n")
		return err == nil && len(st.Waiters) == 1
	})
	revoke(t, client, "n")
	requests.Code(t, s, w.Ended(), driver.CodeUnavailable)
	if st, err := s.Inspect(t.Context(), "n"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != g.ID {
		t.Fatalf("%+v, %v", st, err)
	}
	check(t, s.Release(t.Context(), g, 0))
	check(t, receive(t, "the Locker's lock", locked))
}

// slowOwner is a requester that calls a function before it returns its owner. The store calls Owner
// between the end of a wait and the grant.
type slowOwner struct {
	*requests.Recorder
	called func()
}

func (o *slowOwner) Owner() driver.Owner {
	o.called()
	return o.Recorder.Owner()
}

// TestLeaseEndAtGrantIsReported: the lease ends before the grant has reached the caller. The caller is
// notified of the loss at once, and not at the next renewal.
func TestLeaseEndAtGrantIsReported(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	blocker := must(t, c.open(t), request("n", 1, time.Minute))
	first := request("other", 1, time.Hour)
	held := must(t, s, first)
	calls := 0
	r := request("n", 1, time.Hour)
	o := &slowOwner{Recorder: requests.Of(r)}
	r.From = o
	o.called = func() {
		if calls++; calls < 2 {
			return // the store makes the queue entry
		}
		revoke(t, client, "other")
		receive(t, "the first's loss", requests.Of(first).Losses)
	}
	w := submit(t, s, r)
	receive(t, "the queue entry", o.Waits)
	if a := s.Renew(t.Context(), []driver.Grant{held})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
	check(t, c.open(t).Break(t.Context(), "n", blocker.Token))
	if w.Ended() == nil {
		if cause := receive(t, "the loss", o.Losses); cause != driver.CauseSessionEnded {
			t.Fatal(cause)
		}
	}
}
