package holdfast_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// laptop is the clock of a machine that can be suspended. While it sleeps, the monotonic
// clock stands still and the suspended time grows.
type laptop struct {
	mu    sync.Mutex
	slept time.Duration
}

func (c *laptop) Now() time.Time { return time.Now() }

func (c *laptop) Slept() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slept
}

func (c *laptop) sleep(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slept += d
}

// onClock is a store that times its grants on another clock.
type onClock struct {
	driver.Store
	c driver.Clock
}

func (s onClock) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	sent := driver.NowOn(s.c)
	g, err := s.Store.Acquire(ctx, r)
	g.SentAt = sent
	return g, err
}

func (s onClock) Renew(ctx context.Context, gs []driver.Grant) []driver.Renewal {
	sent := driver.NowOn(s.c)
	answers := s.Store.Renew(ctx, gs)
	for i := range answers {
		answers[i].SentAt = sent
	}
	return answers
}

// TestLossAfterTheMachineSlept: the lease expired at the server while the machine slept.
// Err reports the loss before any timer fires.
func TestLossAfterTheMachineSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &laptop{}
		l := newLocker(t, onClock{memstore.New(), c})
		k := mustLock(t, l, "a")
		c.sleep(20 * time.Second)
		if k.Context().Err() != nil {
			t.Fatal("lost within its validity")
		}
		if left := k.Remaining(); left != 7*time.Second {
			t.Errorf("%s of validity left, want 27s less 20s", left)
		}
		c.sleep(10 * time.Second)
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
	c := &frozen{now: time.Now()}
	l := newLocker(t, onClock{memstore.New(), c})
	k := mustLock(t, l, "a")
	c.advance(28 * time.Second) // no timer of the real clock has fired
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
	c.advance(28 * time.Second)
	_ = k2.Context().Err()
	<-child.Done()
	_, _ = k.Unlock(), k2.Unlock()
}

// frozen is a clock that only advance moves.
type frozen struct {
	mu  sync.Mutex
	now time.Time
}

func (c *frozen) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *frozen) Slept() time.Duration { return 0 }

func (c *frozen) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// late is a store whose next left answers arrive only after the granted lease has expired.
type late struct {
	driver.Store
	c    *frozen
	mu   sync.Mutex
	left int
}

func (s *late) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	sent := driver.NowOn(s.c)
	g, err := s.Store.Acquire(ctx, r)
	g.SentAt = sent
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.left > 0 {
		s.left--
		s.c.advance(time.Minute)
	}
	return g, err
}

// TestValidityCountsFromTheSend: the answer arrives after the lease has expired, so the Locker
// does not use the grant. It rolls the grant back, and a waiter repeats the request.
func TestValidityCountsFromTheSend(t *testing.T) {
	s := memstore.New()
	c := &frozen{now: time.Now()}
	slow := &late{Store: s, c: c, left: 1}
	l, other := newLocker(t, slow), newLocker(t, s.Client())
	if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Fatalf("TryLock: %v", err)
	}
	unlock(t, mustLock(t, other, "a"))

	slow.left = 2
	queued := newLocker(t, altered{slow, func(g *driver.Guarantees) { g.Scope = driver.ScopeNetwork }})
	unlock(t, mustLock(t, queued, "a"))
}

// TestGrantRevokedBeforeItsAnswerIsUnavailable: the store reports the loss of the grant before
// Acquire has returned. TryLock then returns ErrUnavailable.
func TestGrantRevokedBeforeItsAnswerIsUnavailable(t *testing.T) {
	s := memstore.New()
	l := newLocker(t, losesFirst{s})
	if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	unlock(t, mustLock(t, newLocker(t, s.Client()), "a"))
}

type losesFirst struct{ *memstore.Store }

func (s losesFirst) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, r)
	_ = s.Script().Lose(r.Name, driver.CauseTaken)
	return g, err
}
