package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestLossAfterTheMachineSlept: the lease expired at the server while the machine slept.
// Err reports the loss before any timer fires.
func TestLossAfterTheMachineSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &holdfast.FakeClock{}
		l := newLocker(t, holdfast.OnClock(memstore.New(), c))
		k := mustLock(t, l, "a")
		c.Suspended.Add(int64(20 * time.Second))
		if k.Context().Err() != nil {
			t.Fatal("lost within its validity")
		}
		if left := k.Remaining(); left != 7*time.Second {
			t.Errorf("%s of validity left, want 27s less 20s", left)
		}
		c.Suspended.Add(int64(10 * time.Second))
		if holdfast.Token(k.Context(), "a") != 0 {
			t.Error("a token of a lock that the machine slept through")
		}
		if k.Context().Err() == nil {
			t.Error("Err does not read the clock")
		}
		wantCause(t, k.Context(), holdfast.CauseSlept)
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
	})
}

// TestErrReadsTheClockAfterAPause: the process was stopped for longer than its lease. When
// it runs again, no timer has fired yet, so Err must read the clock itself.
func TestErrReadsTheClockAfterAPause(t *testing.T) {
	c := &holdfast.FakeClock{}
	l := newLocker(t, holdfast.OnClock(memstore.New(), c))
	k := mustLock(t, l, "a")
	c.Ahead.Add(int64(28 * time.Second)) // no timer of the real clock has fired
	if k.Context().Err() == nil {
		t.Error("Err does not read the clock")
	}
	select {
	case <-k.Context().Done():
	default:
		t.Error("Err reports the end, but Done is not closed")
	}
	wantCause(t, k.Context(), holdfast.CauseExpired)

	// A derived context ends as well, once a call of Err has found the end.
	k2 := mustLock(t, l, "b")
	child, cancel := context.WithCancel(k2.Context())
	defer cancel()
	c.Ahead.Add(int64(28 * time.Second))
	_ = k2.Context().Err()
	<-child.Done()
	_, _ = k.Unlock(), k2.Unlock()
}

// TestValidityCountsFromTheSend: the answer arrives after the lease has expired, so the Locker
// does not use the grant. It rolls the grant back, and a waiter repeats the request.
func TestValidityCountsFromTheSend(t *testing.T) {
	s := memstore.New()
	c := &holdfast.FakeClock{}
	slow := holdfast.OnClock(s, c)
	acquire, left := slow.OnAcquire, 1 // the answers that come after the lease has expired
	slow.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		g, err := acquire(ctx, r)
		if err == nil && left > 0 {
			left--
			c.Ahead.Add(int64(time.Minute))
		}
		return g, err
	}
	l, other := newLocker(t, slow), newLocker(t, s.Client())
	if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Fatalf("TryLock: %v", err)
	}
	unlock(t, mustLock(t, other, "a"))

	left, slow.Edit = 2, network
	unlock(t, mustLock(t, newLocker(t, slow), "a"))
}

// TestGrantRevokedBeforeItsAnswerIsUnavailable: the store reports the loss of the grant before
// Acquire has returned. TryLock then returns ErrUnavailable.
func TestGrantRevokedBeforeItsAnswerIsUnavailable(t *testing.T) {
	s := memstore.New()
	l := newLocker(t, &fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		defer s.Script().Lose(r.Name, driver.CauseTaken)
		return s.Acquire(ctx, r)
	}})
	if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	unlock(t, mustLock(t, newLocker(t, s.Client()), "a"))
}
