package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
)

const testTimeout = time.Minute

func locker(t *testing.T, s driver.Store, o ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(s, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// submit sends a request that may wait.
func submit(t *testing.T, s *etcdstore.Store, r driver.Request) <-chan result {
	t.Helper()
	r.Wait = true
	done := make(chan result, 1)
	go func() {
		g, err := s.Acquire(t.Context(), r)
		done <- result{g, err}
	}()
	return done
}

// waitIn sends a request that waits, and returns when it has a queue entry.
func waitIn(t *testing.T, s *etcdstore.Store, r driver.Request) <-chan result {
	t.Helper()
	queued, done := r.From.(*requester).queued, submit(t, s, r)
	select {
	case <-queued:
	case res := <-done:
		select {
		case <-queued: // the request had waited for a moment
			over := make(chan result, 1)
			over <- res
			return over
		default:
		}
		t.Fatalf("the request did not wait: %+v, %v", res.g, res.err)
	case <-time.After(testTimeout):
		t.Fatal("the request has no queue entry")
	}
	return done
}

type result struct {
	g   driver.Grant
	err error
}

func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(testTimeout):
		t.Fatalf("missing after %s: %s", testTimeout, what)
		panic("unreachable")
	}
}

// release releases a grant, also after connections were cut and answers were lost.
func release(t *testing.T, s *etcdstore.Store, g driver.Grant) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
		err := s.Release(t.Context(), g, 0)
		if err == nil || s.Classify(err) == driver.CodeNotHeld { // not held: an earlier release was applied, and its answer lost
			return
		}
		if s.Classify(err) != driver.CodeUnknown || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestNameIgnoresKeysBelow: "a" does not wait for "a/b", nor "a/b" for "a", whatever the first
// reads of a busy queue return (etcd issue 6278).
func TestNameIgnoresKeysBelow(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, o := c.open(t), c.open(t)
	names := []string{"a", "a/b", "a/b/c", "a/", "/a", "a//b"}
	for _, limit := range []int{driver.Exclusive, 3, driver.Unlimited} {
		var held []driver.Grant
		for i, n := range names {
			held = append(held, must(t, s, request(fmt.Sprintf("h%d-%d", limit, i), n, driver.Exclusive, time.Minute)))
		}
		for i, n := range names {
			w := waitIn(t, o, request(fmt.Sprintf("w%d-%d", limit, i), n, limit, time.Minute))
			if err := s.Release(t.Context(), held[i], 0); err != nil {
				t.Fatal(err)
			}
			res := receive(t, "the grant of "+n, w)
			if res.err != nil {
				t.Fatal(res.err)
			}
		}
		for i, n := range names {
			st, err := o.Inspect(t.Context(), n)
			if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != fmt.Sprintf("w%d-%d", limit, i) {
				t.Fatalf("%q: %+v, %v", n, st, err)
			}
			if err := o.Break(t.Context(), n, st.Holders[0].Token); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCompactionDisturbsNoWaiter: waiters are granted after a compaction (etcd issue 9715).
func TestCompactionDisturbsNoWaiter(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g := must(t, s, request("h", "n", 1, time.Minute))
	first := waitIn(t, c.open(t), request("w1", "n", 1, time.Minute))
	second := waitIn(t, c.open(t), request("w2", "n", 2, time.Minute))
	for range 10 {
		put, err := client.Put(t.Context(), "unrelated", "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Compact(t.Context(), put.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
	}
	// The client must create its watches again.
	for _, p := range c.proxies {
		p.Cut()
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	release(t, s, g)
	if res := receive(t, "the grant", first); res.err != nil {
		t.Fatal(res.err)
	}
	client.Delete(t.Context(), "n/", clientv3.WithPrefix())
	receive(t, "the end of the second", second)
}

// TestWaiterWithoutLeaseIsNotGranted: a waiter's own lease has ended. The store does not grant the
// lock to this waiter, and the Locker queues again (etcd issue 19597).
func TestWaiterWithoutLeaseIsNotGranted(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g := must(t, s, request("h", "n", 1, time.Minute))
	w := waitIn(t, c.open(t), request("w", "n", 1, time.Minute))
	l := locker(t, c.open(t))
	locked := make(chan error, 1)
	go func() {
		k, err := l.Lock(t.Context(), "n")
		if err == nil {
			err = k.Unlock()
		}
		locked <- err
	}()
	var keys *clientv3.GetResponse
	for end := time.Now().Add(testTimeout); keys == nil || len(keys.Kvs) < 3; time.Sleep(10 * time.Millisecond) {
		var err error
		if keys, err = client.Get(t.Context(), "n/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("the Locker's queue entry did not come: %v", keys.Kvs)
		}
	}
	for _, kv := range keys.Kvs {
		if kv.CreateRevision == int64(g.Token) {
			continue
		}
		if _, err := client.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
			t.Fatal(err)
		}
	}
	if res := receive(t, "the end of the wait", w); res.err == nil || s.Classify(res.err) != driver.CodeUnavailable {
		t.Fatalf("a waiter without a lease got %+v, %v", res.g, res.err)
	}
	if st, err := s.Inspect(t.Context(), "n"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != "h" {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the Locker's lock", locked); err != nil {
		t.Fatal(err)
	}
}

// TestGoroutinesOfOneClientExclude: goroutines of one client exclude each other (etcd issue 11360).
func TestGoroutinesOfOneClientExclude(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	l := locker(t, s)
	sum := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if err := l.Do(t.Context(), "n", func(context.Context) error { sum++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// These goroutines send requests to the store directly, without the core.
	for i := range 4 {
		wg.Go(func() {
			for j := range 25 {
				r := request(fmt.Sprintf("d%d-%d", i, j), "n", 1, time.Minute)
				r.Wait = true
				g, err := s.Acquire(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				sum++
				if err := s.Release(t.Context(), g, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if sum != 300 {
		t.Errorf("the counter is %d, want 300", sum)
	}
}

// TestDeletionAndRevocationEndContext: an operator deletes a key or revokes a lease. The
// holder's context ends with its cause.
func TestDeletionAndRevocationEndContext(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	for _, test := range []struct {
		what  string
		do    func(key string, lease clientv3.LeaseID) error
		cause holdfast.Cause
	}{
		{"deleted", func(key string, _ clientv3.LeaseID) error { _, err := client.Delete(t.Context(), key); return err }, holdfast.CauseTaken},
		{"revoked", func(_ string, lease clientv3.LeaseID) error { _, err := client.Revoke(t.Context(), lease); return err }, holdfast.CauseSessionEnded},
	} {
		l := locker(t, c.open(t))
		k, err := l.Lock(t.Context(), test.what, holdfast.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		keys, err := client.Get(t.Context(), test.what+"/", clientv3.WithPrefix())
		if err != nil || len(keys.Kvs) != 1 {
			t.Fatalf("%v, %v", keys, err)
		}
		if err := test.do(string(keys.Kvs[0].Key), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
			t.Fatal(err)
		}
		receive(t, "the end of the context", k.Context().Done())
		var lost *holdfast.LostError
		if !errors.As(context.Cause(k.Context()), &lost) || lost.Cause != test.cause {
			t.Errorf("%s: cause %v, want %s", test.what, context.Cause(k.Context()), test.cause)
		}
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("%s: Unlock: %v", test.what, err)
		}
	}
}

// slowOwner is a requester that calls a function before it returns its owner. The store calls Owner
// between the end of a wait and the grant.
type slowOwner struct {
	requester
	called func()
}

func (o *slowOwner) Owner() driver.Owner {
	o.called()
	return o.requester.Owner()
}

// TestLeaseEndAtGrantIsReported: the lease ends before the grant has reached the caller. The caller is
// notified of the loss at once, and not at the next renewal.
func TestLeaseEndAtGrantIsReported(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	blocker := must(t, c.open(t), request("b", "n", 1, time.Minute))
	first := request("first", "other", 1, time.Hour)
	held := must(t, s, first)
	keys, err := client.Get(t.Context(), "other/", clientv3.WithPrefix())
	if err != nil || len(keys.Kvs) != 1 {
		t.Fatal(keys, err)
	}
	calls := 0
	o := &slowOwner{requester: requester{id: "w", queued: make(chan struct{}, 1), lost: make(chan driver.Cause, 1)}}
	o.called = func() {
		if calls++; calls < 2 {
			return // the store makes the queue entry
		}
		if _, err := client.Revoke(t.Context(), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
			t.Error(err)
		}
		receive(t, "the first's loss", first.From.(*requester).lost)
	}
	r := driver.Request{ID: "w", Name: "n", Limit: 1, TTL: time.Hour, Wait: true, From: o}
	done := make(chan result, 1)
	go func() {
		g, err := s.Acquire(t.Context(), r)
		done <- result{g, err}
	}()
	receive(t, "the queue entry", o.queued)
	if a := s.Renew(t.Context(), []driver.Grant{held})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
	if err := c.open(t).Break(t.Context(), "n", blocker.Token); err != nil {
		t.Fatal(err)
	}
	if res := receive(t, "the answer", done); res.err == nil {
		if cause := receive(t, "the loss", o.lost); cause != driver.CauseSessionEnded {
			t.Fatal(cause)
		}
	}
}

// TestManySessionsAreRaceFree renews and inspects entries of many leases. The race detector, or the
// runtime's own check of maps, reports data that they share without a mutex.
func TestManySessionsAreRaceFree(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	var held []driver.Grant
	for i := range 40 {
		held = append(held, must(t, s, request(fmt.Sprint("h", i), "n", driver.Unlimited, time.Duration(60+i)*time.Second)))
	}
	for range 50 {
		for i, a := range s.Renew(t.Context(), held) {
			if a.Err != nil || a.TTL != held[i].TTL {
				t.Fatalf("%+v", a)
			}
		}
		st, err := s.Inspect(t.Context(), "n")
		if err != nil || len(st.Holders) != len(held) {
			t.Fatalf("%+v, %v", st, err)
		}
	}
}
