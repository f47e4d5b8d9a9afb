package etcdstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
)

// earlyServer is a server that ends a keepalive a little before its timeout, by its own clock.
type earlyServer struct{ etcdserverpb.LeaseClient }

type earlyStream struct {
	etcdserverpb.Lease_LeaseKeepAliveClient
}

func (earlyServer) LeaseKeepAlive(context.Context, ...grpc.CallOption) (etcdserverpb.Lease_LeaseKeepAliveClient, error) {
	return earlyStream{}, nil
}

func (earlyStream) Send(*etcdserverpb.LeaseKeepAliveRequest) error { return nil }

func (earlyStream) Recv() (*etcdserverpb.LeaseKeepAliveResponse, error) {
	return nil, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
}

// TestKeepaliveHasItsOwnTimeout: a keepalive does not use the caller's timeout. If the server ends
// the keepalive early, the client returns the error at the end of the keepalive's own timeout.
func TestKeepaliveHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := storeOver(t, earlyServer{})
		defer end()
		s.sessions[time.Second] = &session{s: s, ttl: 1, sent: driver.Now(), over: make(chan struct{})}
		time.Sleep(time.Millisecond) // otherwise the lease is fresh, and the client sends no keepalive
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		_, err := s.session(ctx, time.Second)
		if s.Classify(err) != driver.CodeUnavailable {
			t.Errorf("%v, want unavailable", err)
		}
		if took := time.Since(began); took > requestTimeout {
			t.Errorf("the error came after %s, want at most %s", took, requestTimeout)
		}
	})
}

// TestCloseDoesNotDeadlockWithAnAcquisition: an acquisition locks the store's mutex and finds the
// store closed. It must not lock a session's mutex at the same time: a session that begins the
// store's first watch locks both in the other order.
func TestCloseDoesNotDeadlockWithAnAcquisition(t *testing.T) {
	s, end := storeOver(t, earlyServer{})
	defer end()
	e := &session{s: s, live: map[*request]struct{}{}, used: map[string]map[int]struct{}{}, over: make(chan struct{})}
	s.mu.Lock()
	s.closed = true
	begun := make(chan error, 1)
	go func() {
		_, err := s.begin(driver.Request{ID: "late", Name: "n"}, e)
		begun <- err
	}()
	for entered := false; !entered; { // the acquisition waits for the store's mutex, or will soon
		e.mu.Lock()
		entered = len(e.live) > 0
		e.mu.Unlock()
	}
	e.mu.Lock() // as createSentinel and watchEntries do
	s.mu.Unlock()
	free := make(chan struct{})
	go func() {
		defer close(free)
		for range 100 { // long enough for the acquisition to run
			s.background(func() {})
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		t.Error("an acquisition waits for a session and holds the mutex of the store")
	}
	e.mu.Unlock()
	if err := <-begun; err != errClosed {
		t.Errorf("%v, want %v", err, errClosed)
	}
}

// lossRecorder counts the losses that the store reports.
type lossRecorder struct {
	driver.Requester
	losses int
}

func (l *lossRecorder) Lost(driver.Cause, error) { l.losses++ }

// TestDeletionDuringAGrantIsReported: a watch reports the deletion of an entry before the store has
// returned the grant. The store must notify the holder, because no watch reports the deletion again.
func TestDeletionDuringAGrantIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := storeOver(t, earlyServer{})
		defer end()
		e := &session{s: s, ttl: time.Minute, sent: driver.Now(), over: make(chan struct{})}
		time.Sleep(time.Millisecond)
		from := &lossRecorder{}
		a := &request{r: driver.Request{From: from}, e: e, woken: make(chan int64, 1)}
		a.rev.Store(7)
		e.reportDeleted([]*request{a}, causeTimeout) // after the read that found the entry first, before the grant
		a.grant(7, record{})
		if from.losses != 1 {
			t.Errorf("the store reports %d losses, want 1", from.losses)
		}
	})
}
