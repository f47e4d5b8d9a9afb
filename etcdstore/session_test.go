package etcdstore

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestKeepaliveHasItsOwnTimeout: a keepalive does not use the caller's timeout. If the server ends
// the keepalive early, the client returns the error at the end of the keepalive's own timeout.
func TestKeepaliveHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := storeOver(t, &leaseServer{early: true})
		defer end()
		e := &session{s: s, ttl: 1, sent: driver.Now(), over: make(chan struct{})}
		s.sessions.Make = func(context.Context, time.Duration) (*session, error) { return e, nil }
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
		s, end := storeOver(t, &leaseServer{early: true})
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

// TestEndedSessionIsOver: several requests find that the lease has ended. None of them may get the same session again.
func TestEndedSessionIsOver(t *testing.T) {
	for range 100_000 {
		e := &session{over: make(chan struct{})}
		var ending sync.WaitGroup
		for range 2 {
			ending.Go(func() {
				e.end(errLeaseEnded)
				if !e.isOver() {
					t.Error("the session is not over")
				}
			})
		}
		ending.Wait()
	}
}
