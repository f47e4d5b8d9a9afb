package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// late is an interceptor that delays a transaction: its sender gets a broken connection, and
// the transaction reaches the server when the test sends it. It can also lose the answer of
// an applied one.
type late struct {
	mu       sync.Mutex
	hold     func(*etcdserverpb.TxnRequest) bool
	lose     func(*etcdserverpb.TxnRequest) bool
	reported error                                     // the error of a delayed or lost transaction; errBroken if nil
	sent     func() (*etcdserverpb.TxnResponse, error) // the delayed transactions
	// after is called when the next transaction was applied and its answer lost.
	after func()
	// refuse makes deletions fail with the error of a missing right.
	refuse atomic.Bool
}

var errBroken = status.Error(codes.Unavailable, "the connection broke")

func (l *late) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	txn, ok := req.(*etcdserverpb.TxnRequest)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	l.mu.Lock()
	hold, lose := l.hold != nil && l.hold(txn), l.lose != nil && l.lose(txn)
	if hold {
		l.hold = nil
		kept := proto.Clone(txn)
		l.sent = func() (*etcdserverpb.TxnResponse, error) {
			var answer etcdserverpb.TxnResponse
			err := invoke(context.WithoutCancel(ctx), method, kept, &answer, cc)
			return &answer, err
		}
	}
	if lose {
		l.lose = nil
	}
	reported := l.reported
	after := l.after
	l.after = nil
	l.mu.Unlock()
	if hold {
		return cmp.Or(reported, errBroken)
	}
	if l.refuse.Load() && deletes(txn) {
		return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if after != nil {
		after()
		return status.FromContextError(context.Canceled).Err()
	}
	if lose && err == nil {
		return cmp.Or(reported, errBroken)
	}
	return err
}

// makes reports whether a transaction changes something: those have conditions, reads have
// none.
func makes(txn *etcdserverpb.TxnRequest) bool { return len(txn.Compare) > 0 }

func deletes(txn *etcdserverpb.TxnRequest) bool {
	for _, op := range txn.Success {
		if op.GetRequestDeleteRange() != nil {
			return true
		}
	}
	return false
}

func puts(txn *etcdserverpb.TxnRequest) bool {
	for _, op := range txn.Success {
		if op.GetRequestPut() != nil {
			return true
		}
	}
	return false
}

func (c *cluster) late(t *testing.T) (*etcdstore.Store, *late) {
	t.Helper()
	l := &late{}
	return over(t, c.direct(t, unary(l.intercept))), l
}

type requester struct {
	id     string
	queued chan struct{}
	lost   chan driver.Cause
}

func (a *requester) Owner() driver.Owner { return driver.Owner{ID: a.id, Host: "test", PID: 1} }
func (a *requester) Queued([]driver.Holder) {
	select {
	case a.queued <- struct{}{}:
	default:
	}
}
func (a *requester) Lost(c driver.Cause, _ error) {
	select {
	case a.lost <- c:
	default:
	}
}

func request(id, name string, limit int, ttl time.Duration) driver.Request {
	return driver.Request{ID: id, Name: name, Limit: limit, TTL: ttl,
		From: &requester{id: id, queued: make(chan struct{}, 1), lost: make(chan driver.Cause, 1)}}
}

func must(t *testing.T, s *etcdstore.Store, r driver.Request) driver.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestLateAcquireMakesNoEntry: an acquisition gets no answer. It reaches the server after its undo
// was confirmed, and makes no queue entry (etcd issue 12900).
func TestLateAcquireMakesNoEntry(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	for _, wait := range []bool{false, true} {
		s, l := c.late(t)
		other := c.open(t)
		if g := must(t, s, request("first", "n", 1, time.Minute)); s.Release(t.Context(), g, 0) != nil {
			t.Fatal("the first release failed")
		}
		r := request("late", "n", 1, time.Minute)
		r.Wait = wait
		l.mu.Lock()
		l.hold = puts
		l.mu.Unlock()
		if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeUnknown {
			t.Fatalf("wait %t: Acquire returned %v, want an unknown outcome", wait, err)
		}
		if err := s.Undo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if answer, err := l.sent(); err != nil || answer.Succeeded {
			t.Fatalf("wait %t: the late transaction was applied: %v, %v", wait, answer, err)
		}
		// The store continues, with the epoch that it has made.
		g := must(t, s, request("next", "n", 1, time.Minute))
		if err := s.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		g = must(t, other, request("other", "n", 1, time.Minute))
		if err := other.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTransactionSentTwiceMakesOneEntry: a proxy reports a transaction as cancelled, and etcd's
// client repeats it. The server may have applied the first transaction, and the request still has
// only one queue entry.
func TestTransactionSentTwiceMakesOneEntry(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	for i, test := range []struct {
		what         string
		limit        int
		wait, behind bool
	}{
		{"try", driver.Exclusive, false, false},
		{"shared try", driver.Unlimited, false, false},
		{"shared try beside another", driver.Unlimited, false, true},
		{"permit", 3, false, true},
		{"wait", driver.Exclusive, true, false},
		{"shared wait", driver.Unlimited, true, true},
		{"wait behind another", driver.Exclusive, true, true},
	} {
		n := fmt.Sprint("n", i)
		before := 0
		var first driver.Grant
		if test.behind {
			first = must(t, other, request("first-"+n, n, test.limit, time.Minute))
			before = 1
		}
		r := request("r-"+n, n, test.limit, time.Minute)
		r.Wait = test.wait
		l.mu.Lock()
		sent := 0
		l.lose = func(txn *etcdserverpb.TxnRequest) bool {
			if puts(txn) {
				sent++
			}
			// A try beside another entry reads that entry first.
			return sent > 1 || sent > 0 && (test.wait || !test.behind)
		}
		l.reported = status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL")
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		done := make(chan result, 1)
		go func() {
			g, err := s.Acquire(ctx, r)
			done <- result{g, err}
		}()
		if test.behind && test.limit == driver.Exclusive {
			receive(t, "the queue entry", r.From.(*requester).queued)
			if err := other.Release(t.Context(), first, 0); err != nil {
				t.Fatal(err)
			}
			before = 0
		}
		res := receive(t, "the grant of "+test.what, done)
		if res.err != nil {
			t.Errorf("%s: %v", test.what, res.err)
		} else if a := s.Renew(t.Context(), []driver.Grant{res.g})[0]; a.Err != nil {
			t.Errorf("%s: Renew: %v", test.what, a.Err)
		} else if err := s.Release(t.Context(), res.g, 0); err != nil {
			t.Errorf("%s: Release: %v", test.what, err)
		}
		if st, err := other.Inspect(t.Context(), n); err != nil || len(st.Holders) != before || len(st.Waiters) > 0 {
			t.Errorf("%s: left behind: %+v, %v", test.what, st, err)
		}
	}
}

// TestBusyServerKeepsEntryAtGrant: a queue entry is the first, and the server is too busy to
// accept its claim. The entry stays.
func TestBusyServerKeepsEntryAtGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	first := must(t, other, request("first", "n", 2, time.Minute))
	must(t, other, request("second", "n", 2, time.Minute))
	w := waitIn(t, s, request("w", "n", 2, time.Minute))
	l.mu.Lock()
	l.hold, l.reported = puts, rpctypes.ErrGRPCRequestTooManyRequests
	l.mu.Unlock()
	if err := other.Release(t.Context(), first, 0); err != nil {
		t.Fatal(err)
	}
	if res := receive(t, "the grant", w); res.err != nil {
		t.Fatal(res.err)
	}
}

// TestLateReleaseEndsNoNewerGrant: the answer to a release was lost. That lock and a new one
// never share a token. The release that arrives late, or twice, does not end the newer
// grant.
func TestLateReleaseEndsNoNewerGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	g := must(t, s, request("one", "n", 1, time.Minute))
	l.mu.Lock()
	l.lose = deletes
	l.mu.Unlock()
	if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Release returned %v, want an unknown outcome", err)
	}
	next := must(t, s, request("two", "n", 1, time.Minute))
	if next.Token <= g.Token {
		t.Fatalf("token %d after %d", next.Token, g.Token)
	}
	if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeNotHeld {
		t.Fatalf("the repeated release returned %v, want not held", err)
	}

	l.mu.Lock()
	l.hold = deletes
	l.mu.Unlock()
	if err := s.Release(t.Context(), next, 0); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Release returned %v, want an unknown outcome", err)
	}
	if err := s.Release(t.Context(), next, 0); err != nil {
		t.Fatal(err)
	}
	third := must(t, s, request("three", "n", 1, time.Minute))
	if answer, err := l.sent(); err != nil || answer.Succeeded {
		t.Fatalf("the late release was applied: %v, %v", answer, err)
	}
	if err := s.Release(t.Context(), third, 0); err != nil {
		t.Fatalf("the late release ended a newer grant: %v", err)
	}
}

// TestLateUndoEndsNoNewerRequest: an undo arrives late, after a newer request. It does not end the
// newer grant.
func TestLateUndoEndsNoNewerRequest(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	r := request("one", "n", 1, time.Minute)
	must(t, s, r)
	l.mu.Lock()
	l.hold = makes
	l.mu.Unlock()
	if err := s.Undo(t.Context(), r); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Undo returned %v, want an unknown outcome", err)
	}
	if err := s.Undo(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g := must(t, s, request("two", "n", 1, time.Minute))
	if _, err := l.sent(); err != nil {
		t.Fatal(err)
	}
	// The late undo has neither ended this grant nor blocked the name.
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), must(t, s, request("three", "n", 1, time.Minute)), 0); err != nil {
		t.Fatal(err)
	}
}

// TestCauseOfContextIsNoAnswer: the cause of a caller's context is not the store's answer. A
// request without an answer has an unknown outcome, whatever error is the cause.
func TestCauseOfContextIsNoAnswer(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	for _, code := range []driver.Code{driver.CodeNotHeld, driver.CodeRefused, driver.CodeUnavailable, driver.CodeClosed} {
		ctx, cancel := context.WithCancelCause(t.Context())
		l.mu.Lock()
		l.after = func() { cancel(driver.Errorf(code, "an outer lock was lost")) }
		l.mu.Unlock()
		r := request("r-"+code.String(), code.String(), 1, time.Minute)
		_, err := s.Acquire(ctx, r)
		if got := s.Classify(err); got != driver.CodeUnknown {
			t.Errorf("Acquire, with a key that may stand: %v (%v)", got, err)
		}
		if err := s.Undo(t.Context(), r); err != nil {
			t.Error(err)
		}
		if st, err := s.Inspect(t.Context(), r.Name); err != nil || len(st.Holders) > 0 {
			t.Errorf("after Undo: %+v, %v", st, err)
		}
	}
}

// TestCauseOfContextEndsNoLease: the cause of a caller's context may be an error from the caller's
// own use of etcd. It does not end the lease, which other locks need.
func TestCauseOfContextEndsNoLease(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	held := must(t, s, request("held", "held", 1, time.Minute))
	stands := func(when string) {
		t.Helper()
		if a := s.Renew(t.Context(), []driver.Grant{held})[0]; a.Err != nil {
			t.Errorf("another lock, after %s: %v", when, a.Err)
		}
	}
	for _, wait := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		l.mu.Lock()
		l.after = func() { cancel(rpctypes.ErrLeaseNotFound) }
		l.mu.Unlock()
		r := request(fmt.Sprint("lost-", wait), "n", 1, time.Minute)
		r.Wait = wait
		if _, err := s.Acquire(ctx, r); s.Classify(err) != driver.CodeUnknown {
			t.Errorf("Acquire, with a key that may stand: %v", err)
		}
		if err := s.Undo(t.Context(), r); err != nil {
			t.Error(err)
		}
		if st, err := other.Inspect(t.Context(), "n"); err != nil || len(st.Holders) > 0 {
			t.Errorf("after Undo: %+v, %v", st, err)
		}
		stands("a lost answer")
	}

	must(t, other, request("first", "m", 1, time.Minute))
	ctx, cancel := context.WithCancelCause(t.Context())
	r := request("w", "m", 1, time.Minute)
	r.Wait = true
	done := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, r)
		done <- err
	}()
	receive(t, "the queue entry", r.From.(*requester).queued)
	cancel(rpctypes.ErrLeaseNotFound)
	if err := receive(t, "the end of the wait", done); s.Classify(err) != driver.CodeWithdrawn {
		t.Errorf("a wait whose context has ended: %v", err)
	}
	stands("a wait")
}

// TestMissingLeaseIsReplaced: a request finds its lease gone, and is granted on a new one.
func TestMissingLeaseIsReplaced(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	for _, wait := range []bool{false, true} {
		n := fmt.Sprint("n-", wait)
		held := request("held-"+n, n, 1, time.Hour)
		must(t, s, held)
		keys, err := client.Get(t.Context(), n+"/", clientv3.WithPrefix())
		if err != nil || len(keys.Kvs) != 1 {
			t.Fatal(keys, err)
		}
		if _, err := client.Revoke(t.Context(), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
			t.Fatal(err)
		}
		r := request("next-"+n, n, 1, time.Hour)
		r.Wait = wait
		if err := s.Release(t.Context(), must(t, s, r), 0); err != nil {
			t.Error(err)
		}
		if cause := receive(t, "the loss", held.From.(*requester).lost); cause != driver.CauseSessionEnded {
			t.Error(cause)
		}
	}
}

// TestAnswerTooLargeIsUnknown: the client refuses an answer above its own size limit. The server
// has not refused the request, but executed it.
func TestAnswerTooLargeIsUnknown(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := over(t, c.direct(t, func(cfg *clientv3.Config) { cfg.MaxCallSendMsgSize, cfg.MaxCallRecvMsgSize = 4<<10, 8<<10 }))
	other := c.open(t)
	for i := range 100 {
		must(t, other, request(fmt.Sprint("h", i), "n", driver.Unlimited, time.Minute))
	}
	r := request("late", "n", driver.Unlimited, time.Minute)
	r.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, r)
	code := s.Classify(err)
	if code == driver.CodeUnknown {
		if err := s.Undo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	st, err2 := other.Inspect(t.Context(), "n")
	if err2 != nil || len(st.Holders) != 100 {
		t.Errorf("%d holders, %v, after a request that ended as %s (%v)", len(st.Holders), err2, code, err)
	}
}

// TestUnconfirmedReleaseEndsWithLease: the client does not keep a lease alive for a grant with an
// unconfirmed release. If the caller does not repeat the release, the grant expires.
func TestUnconfirmedReleaseEndsWithLease(t *testing.T) {
	c := start(t, servers.EtcdConfig{Heartbeat: quick})
	s, l := c.late(t)
	g := must(t, s, request("h", "n", 1, time.Second))
	l.mu.Lock()
	l.hold = deletes
	l.mu.Unlock()
	if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Release returned %v, want an unknown outcome", err)
	}
	if res := receive(t, "the next grant", submit(t, c.open(t), request("w", "n", 1, time.Minute))); res.err != nil {
		t.Fatal(res.err)
	}
}

// TestRefusedReleaseIsRepeatedWhileLeaseLives: the server refuses a release for longer than
// the TTL, and other locks of the process keep the lease alive. The client repeats the
// release until it succeeds.
func TestRefusedReleaseIsRepeatedWhileLeaseLives(t *testing.T) {
	c := start(t, servers.EtcdConfig{Heartbeat: quick})
	s, refusing := c.late(t)
	tried := make(chan time.Time, 1000)
	l := locker(t, s, holdfast.WithHooks(unconfirmed{tried}))
	// The client connects during the first request, whose timeout is its TTL.
	if err := l.Do(t.Context(), "first", func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	const ttl = 4 * time.Second
	other, err := l.Lock(t.Context(), "other", holdfast.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Unlock()
	k, err := l.Lock(t.Context(), "n", holdfast.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	refusing.refuse.Store(true)
	if err := k.Unlock(); !errors.Is(err, holdfast.ErrRefused) {
		t.Fatalf("Unlock: %v", err)
	}
	// If the machine stalls and no renewal is sent in time, the lease itself expires.
	expired := func() bool {
		var lost *holdfast.LostError
		return errors.As(context.Cause(other.Context()), &lost) && lost.Cause == holdfast.CauseExpired
	}
	// A grant that the client no longer releases would expire within two TTLs.
	end := time.Now().Add(testTimeout)
	for from := time.Now(); ; {
		var at time.Time
		select {
		case at = <-tried:
		case <-time.After(time.Until(end)):
			if expired() {
				t.Skip("the lease was not renewed in time")
			}
			t.Fatal("another try did not come")
		}
		if at.Sub(from) > 2*ttl+time.Second {
			break
		}
	}
	refusing.refuse.Store(false)
	if res := receive(t, "the next grant", submit(t, c.open(t), request("w", "n", 1, time.Minute))); res.err != nil {
		t.Fatal(res.err)
	}
	if cause := context.Cause(other.Context()); cause != nil && !expired() {
		t.Fatal(cause)
	}
}

// unconfirmed are hooks that report an unconfirmed release.
type unconfirmed struct{ at chan<- time.Time }

func (unconfirmed) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }
func (u unconfirmed) Event(_ context.Context, e holdfast.Event) {
	if e.Kind == holdfast.EventUnconfirmed {
		u.at <- e.At
	}
}

// renamed is a requester that returns one reason for its queue entry and another one for its grant.
type renamed struct {
	*requester
	reason atomic.Value
}

func (r *renamed) Owner() driver.Owner {
	o := r.requester.Owner()
	o.Reason, _ = r.reason.Load().(string)
	return o
}

// TestLateClaimDoesNotRebindKey: a grant was released and kept for a while. A claim
// that arrives after that does not bind its key to the client's lease again.
func TestLateClaimDoesNotRebindKey(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	g := must(t, other, request("holder", "n", 1, time.Minute))
	r := request("late", "n", 1, time.Minute)
	words := &renamed{requester: r.From.(*requester)}
	r.From, r.Wait = words, true
	done := make(chan result, 1)
	go func() {
		g, err := s.Acquire(t.Context(), r)
		done <- result{g, err}
	}()
	receive(t, "the queue entry", words.queued)
	words.reason.Store("after")
	l.mu.Lock()
	l.hold = puts
	l.mu.Unlock()
	if err := other.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	res := receive(t, "the grant", done)
	if res.err != nil {
		t.Fatal(res.err)
	}
	if err := s.Release(t.Context(), res.g, time.Minute); err != nil {
		t.Fatal(err)
	}
	if answer, err := l.sent(); err != nil || answer.Succeeded {
		t.Fatalf("the late claim was applied: %v, %v", answer, err)
	}
}
