package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/contention"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// swaps reports whether a transaction releases a grant and makes a queue entry.
func swaps(txn *etcdserverpb.TxnRequest) bool {
	return len(txn.Success) == 2 && txn.Success[0].GetRequestTxn() != nil && txn.Success[1].GetRequestTxn() != nil &&
		deletes(txn.Success[0].GetRequestTxn()) && puts(txn.Success[1].GetRequestTxn())
}

// swapIn starts a Swap. It returns the outcome of the release, and that of the request.
func swapIn(ctx context.Context, s *etcdstore.Store, old driver.Grant, r driver.Request) (released chan error, done chan result) {
	r.Wait = true
	released, done = make(chan error, 4), make(chan result, 1)
	go func() {
		g, err := s.Swap(ctx, old, r, func(err error) { released <- err })
		close(released)
		done <- result{g, err}
	}()
	return released, done
}

// TestSwapIsOneWrite: a swap deletes the old entry and makes the new one in one revision, which is the
// token of the new grant.
func TestSwapIsOneWrite(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g := must(t, s, request("first", "n", 1, time.Hour))
	from := int64(g.Token)
	const n = 20
	tokens := map[int64]bool{}
	for i := range n {
		released, done := swapIn(t.Context(), s, g, request(fmt.Sprint("r", i), "n", 1, time.Hour))
		if err := receive(t, "the release", released); err != nil {
			t.Fatal(err)
		}
		res := receive(t, "the grant", done)
		if res.err != nil {
			t.Fatal(res.err)
		}
		g = res.g
		tokens[int64(g.Token)] = true
	}
	deleted := 0
	for changes := client.Watch(t.Context(), "n/", clientv3.WithPrefix(), clientv3.WithRev(from)); deleted < n; {
		for _, e := range receive(t, "the changes", changes).Events {
			if e.Type == clientv3.EventTypeDelete {
				if deleted++; !tokens[e.Kv.ModRevision] {
					t.Errorf("an entry was deleted at revision %d, which made no grant", e.Kv.ModRevision)
				}
			}
		}
	}
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
}

// TestSwapWithoutAnswer: the answer to a swap is lost, or the swap itself arrives late. Both outcomes
// are unknown. After the undo and the repeated release nothing stands, and a late swap makes no
// entry and ends no newer grant.
func TestSwapWithoutAnswer(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	for _, late := range []bool{false, true} {
		n := fmt.Sprint("late-", late)
		old := must(t, s, request("old-"+n, n, 1, time.Hour))
		r := request("new-"+n, n, 1, time.Hour)
		l.mu.Lock()
		if l.reported = errBroken; late {
			l.hold = swaps
		} else {
			l.lose = swaps
		}
		l.mu.Unlock()
		released, done := swapIn(t.Context(), s, old, r)
		if err := receive(t, "the release", released); s.Classify(err) != driver.CodeUnknown {
			t.Fatalf("late %t: the release: %v, want an unknown outcome", late, err)
		}
		if res := receive(t, "the answer", done); s.Classify(res.err) != driver.CodeUnknown {
			t.Fatalf("late %t: the request: %v, want an unknown outcome", late, res.err)
		}
		want := driver.CodeNotHeld // released by the swap
		if err := s.Undo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		err := s.Release(t.Context(), old, 0)
		if late && err != nil || !late && s.Classify(err) != want {
			t.Errorf("late %t: the repeated release: %v", late, err)
		}
		// This request gets the key of the old grant.
		next := must(t, s, request("next-"+n, n, 1, time.Hour))
		if next.Token <= old.Token {
			t.Errorf("late %t: token %d after %d", late, next.Token, old.Token)
		}
		if late {
			answer, err := l.sent()
			if err != nil || answer.Responses[0].GetResponseTxn().Succeeded || answer.Responses[1].GetResponseTxn().Succeeded {
				t.Errorf("the late swap was applied: %v, %v", answer, err)
			}
		}
		if err := s.Release(t.Context(), next, 0); err != nil {
			t.Errorf("late %t: %v", late, err)
		}
		if st, err := other.Inspect(t.Context(), n); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
			t.Errorf("late %t: left behind: %+v, %v", late, st, err)
		}
	}
}

// TestSwapSentTwiceMakesOneEntry: the client library repeats a swap that the server has applied. The
// release finds that the grant has ended, and the request has one queue entry.
func TestSwapSentTwiceMakesOneEntry(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	old := must(t, s, request("old", "n", 1, time.Hour))
	l.mu.Lock()
	l.lose, l.reported = swaps, status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL")
	l.mu.Unlock()
	released, done := swapIn(t.Context(), s, old, request("new", "n", 1, time.Hour))
	if err := receive(t, "the release", released); s.Classify(err) != driver.CodeNotHeld {
		t.Errorf("the release: %v, want not held", err)
	}
	res := receive(t, "the grant", done)
	if res.err != nil {
		t.Fatal(res.err)
	}
	if err := s.Release(t.Context(), res.g, 0); err != nil {
		t.Error(err)
	}
	if st, err := other.Inspect(t.Context(), "n"); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("left behind: %+v, %v", st, err)
	}
}

// TestSwapOfAReleasedGrant: another call has released the grant, and the request of the swap gets its
// key. The request is granted, and the release is reported once.
func TestSwapOfAReleasedGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	old := must(t, s, request("old", "n", 1, time.Hour))
	if err := s.Release(t.Context(), old, 0); err != nil {
		t.Fatal(err)
	}
	released, done := swapIn(t.Context(), s, old, request("new", "n", 1, time.Hour))
	res := receive(t, "the grant", done)
	if res.err != nil || res.g.Token <= old.Token {
		t.Errorf("%+v, %v", res.g, res.err)
	}
	if err, reported := <-released; !reported || s.Classify(err) != driver.CodeNotHeld {
		t.Errorf("the release was reported: %t, %v; want not held", reported, err)
	}
	if err, again := <-released; again {
		t.Errorf("the release was reported twice: %v", err)
	}
}

// TestSwapReleasesBeforeAKeepalive: the lease needs a keepalive before the next request, and no
// keepalive is answered. The release goes out in any case.
func TestSwapReleasesBeforeAKeepalive(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := over(t, c.direct(t, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if method == "/etcdserverpb.Lease/LeaseKeepAlive" {
					return nil, errBroken
				}
				return streamer(ctx, desc, cc, method, opts...)
			}))
	}))
	const ttl = 3 * time.Second
	for i := range 10 {
		began := time.Now()
		n := fmt.Sprint("n", i)
		old := must(t, s, request("old-"+n, n, 1, ttl))
		time.Sleep(ttl/3 + 10*time.Millisecond) // the age at which a keepalive is due
		released, done := swapIn(t.Context(), s, old, request("new-"+n, n, 1, ttl))
		res := receive(t, "the answer", done)
		err, reported := <-released
		if !reported {
			t.Fatalf("the release was not made; the request: %v", res.err)
		}
		if err == nil {
			return
		}
		// The release failed. The only valid reason is that the process or the server stalled and
		// the grant expired.
		if took := time.Since(began); took < ttl {
			t.Fatalf("the release after %s: %v", took, err)
		}
	}
	t.Error("every grant expired before its release")
}

// TestHalvesOfASwapAreIndependent: one half of a swap fails, and the other succeeds. In the first
// case an administrator has deleted the old grant: the request is granted. In the second case the
// request finds a kept grant under its key: the release succeeds at once.
func TestHalvesOfASwapAreIndependent(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, other, client := c.open(t), c.open(t), c.direct(t)
	old := must(t, s, request("old", "deleted", 1, time.Hour))
	if _, err := client.Delete(t.Context(), "deleted/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	released, done := swapIn(t.Context(), s, old, request("new", "deleted", 1, time.Hour))
	if err := receive(t, "the release", released); s.Classify(err) != driver.CodeNotHeld {
		t.Errorf("the release of a deleted grant: %v, want not held", err)
	}
	if res := receive(t, "the grant", done); res.err != nil {
		t.Error(res.err)
	}

	first := must(t, s, request("first", "taken", driver.Unlimited, time.Hour))
	kept := must(t, s, request("kept", "taken", driver.Unlimited, time.Hour))
	if err := s.Release(t.Context(), kept, time.Hour); err != nil {
		t.Fatal(err)
	}
	r := request("new", "taken", driver.Exclusive, time.Hour)
	released, done = swapIn(t.Context(), s, first, r)
	if err := receive(t, "the release", released); err != nil {
		t.Errorf("the release: %v", err)
	}
	receive(t, "the queue entry", r.From.(*requester).queued)
	st, err := other.Inspect(t.Context(), "taken")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != "kept" || len(st.Waiters) != 1 {
		t.Errorf("%+v, %v, want the grant that was kept and a waiter", st, err)
	}
	if err := other.Break(t.Context(), "taken", kept.Token); err != nil {
		t.Fatal(err)
	}
	if res := receive(t, "the grant", done); res.err != nil {
		t.Error(res.err)
	}
}

// TestRefusedSwapReleasesAlone: the server refuses a swap and applies nothing of it. The caller can
// still release the lock alone. If the server answers "no space", the store releases the lock
// itself, whether the server has applied the swap or not.
func TestRefusedSwapReleasesAlone(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	for i, test := range []struct {
		hold     bool
		reported error
		reports  bool
	}{
		{true, rpctypes.ErrGRPCRequestTooManyRequests, false},
		{true, status.Error(codes.PermissionDenied, "etcdserver: permission denied"), false},
		{true, rpctypes.ErrGRPCNoSpace, true},
		{false, rpctypes.ErrGRPCNoSpace, true},
	} {
		n := fmt.Sprint("n", i)
		old := must(t, s, request("old-"+n, n, 1, time.Hour))
		l.mu.Lock()
		if l.reported = test.reported; test.hold {
			l.hold = swaps
		} else {
			l.lose = swaps
		}
		l.mu.Unlock()
		released, done := swapIn(t.Context(), s, old, request("new-"+n, n, 1, time.Hour))
		res := receive(t, "the answer", done)
		if code := s.Classify(res.err); res.err == nil || code == driver.CodeUnknown {
			t.Errorf("%v: %v", test.reported, res.err)
		}
		err, reported := <-released
		if reported != test.reports || err != nil {
			t.Errorf("%v: the release was reported: %t, %v", test.reported, reported, err)
		}
		if !reported {
			if err := s.Release(t.Context(), old, 0); err != nil {
				t.Errorf("%v: Release: %v", test.reported, err)
			}
		}
		if st, err := other.Inspect(t.Context(), n); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
			t.Errorf("%v: left behind: %+v, %v", test.reported, st, err)
		}
	}
}

// TestSwapOnAMissingLease: the lease of the session has ended. The request is granted on a new
// lease, and the release reports that the old grant has ended.
func TestSwapOnAMissingLease(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	old := must(t, s, request("old", "n", 1, time.Hour))
	keys, err := client.Get(t.Context(), "n/", clientv3.WithPrefix())
	if err != nil || len(keys.Kvs) != 1 {
		t.Fatalf("%v, %v", keys, err)
	}
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	released, done := swapIn(t.Context(), s, old, request("new", "n", 1, time.Hour))
	if err := receive(t, "the release", released); s.Classify(err) != driver.CodeNotHeld {
		t.Errorf("the release: %v, want not held", err)
	}
	res := receive(t, "the grant", done)
	if res.err != nil || res.g.Token <= old.Token {
		t.Errorf("%+v, %v", res.g, res.err)
	}
}

// TestLockersSwapWithLostAnswers: goroutines of two processes contend for one name, while answers to
// swaps are lost again and again.
func TestLockersSwapWithLostAnswers(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	contention.WithLostAnswers(t, "n", c.open(t), 4, func() contention.Client {
		s, l := c.late(t)
		return contention.Client{Store: s, Lose: func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.lose = swaps
			return nil
		}}
	})
}
