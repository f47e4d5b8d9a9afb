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

// early is a server that ends a keepalive a little before its timeout, by its own clock.
type early struct{ etcdserverpb.LeaseClient }

type earlyStream struct {
	etcdserverpb.Lease_LeaseKeepAliveClient
}

func (early) LeaseKeepAlive(context.Context, ...grpc.CallOption) (etcdserverpb.Lease_LeaseKeepAliveClient, error) {
	return earlyStream{}, nil
}

func (earlyStream) Send(*etcdserverpb.LeaseKeepAliveRequest) error { return nil }

func (earlyStream) Recv() (*etcdserverpb.LeaseKeepAliveResponse, error) {
	return nil, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
}

// TestKeepaliveHasItsOwnTimeout: a keepalive's timeout is not the caller's. If the server
// gives it up early, the error comes at the end of the keepalive's own timeout.
func TestKeepaliveHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := storeOver(t, early{})
		defer end()
		s.sessions[time.Second] = &session{s: s, ttl: 1, sent: driver.Now(), over: make(chan struct{})}
		time.Sleep(time.Millisecond) // otherwise the lease would be as fresh as possible
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		_, err := s.session(ctx, time.Second)
		if s.Classify(err) != driver.CodeUnavailable {
			t.Errorf("%v, want unavailable", err)
		}
		if took := time.Since(began); took > requestTimeout {
			t.Errorf("it took %s", took)
		}
	})
}

// TestCloseDoesNotDeadlockWithAnAcquisition: an acquisition finds the store closed while it
// has the store's mutex. It must not wait for a session: a session that begins the store's
// first watch waits for that mutex.
func TestCloseDoesNotDeadlockWithAnAcquisition(t *testing.T) {
	s, end := storeOver(t, early{})
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
	e.mu.Lock() // as mark and watchEntries do
	s.mu.Unlock()
	free := make(chan struct{})
	go func() {
		defer close(free)
		for range 100 { // so that the acquisition runs
			s.background(func() {})
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		t.Error("the store is locked by an acquisition that waits for a session")
	}
	e.mu.Unlock()
	if err := <-begun; err != errClosed {
		t.Errorf("%v, want that the store is closed", err)
	}
}

// lossRecorder counts the losses that are reported.
type lossRecorder struct {
	driver.Requester
	losses int
}

func (l *lossRecorder) Lost(driver.Cause, error) { l.losses++ }

// TestDeletionDuringAGrantIsReported: a watch reports a deletion while the entry is being
// granted. The holder must be notified, because no watch reports it again.
func TestDeletionDuringAGrantIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := storeOver(t, early{})
		defer end()
		e := &session{s: s, ttl: time.Minute, sent: driver.Now(), over: make(chan struct{})}
		time.Sleep(time.Millisecond)
		from := &lossRecorder{}
		a := &request{r: driver.Request{From: from}, e: e, passed: make(chan int64, 1)}
		a.rev.Store(7)
		e.gone([]*request{a}, causeTimeout) // between the read that found it first and the grant
		a.grant(7, record{})
		if from.losses != 1 {
			t.Errorf("%d losses are reported, want 1", from.losses)
		}
	})
}
