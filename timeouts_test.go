package holdfast_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestWaitLimitsEveryPhase requires that Wait also limits the request for the guarantees, the fast
// path, and the wait after a slow fast path.
func TestWaitLimitsEveryPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		try := func(l *holdfast.Locker, want error, took time.Duration, o ...holdfast.LockOption) {
			t.Helper()
			began := time.Now()
			if _, err := l.Lock(bg, "a", o...); !errors.Is(err, want) || time.Since(began) != took {
				t.Errorf("%v after %s, want %v after %s", err, time.Since(began), want, took)
			}
		}
		silent := newLocker(t, &fake{Store: memstore.New(), Guaranteed: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		if _, err := silent.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("TryLock: %v", err)
		}
		try(silent, holdfast.ErrUnavailable, time.Second, holdfast.Wait(time.Second))
		// Each request has the Locker's request timeout. The Locker repeats it until the request
		// timeout of the lock.
		try(silent, holdfast.ErrUnavailable, 5*time.Second+100*time.Millisecond, holdfast.TTL(300*time.Millisecond))

		s := memstore.New()
		l := newLocker(t, s)
		if _, err := l.Guarantees(bg); err != nil {
			t.Fatal(err)
		}
		s.Script().Stop()
		try(l, holdfast.ErrUnavailable, 100*time.Millisecond, holdfast.Wait(100*time.Millisecond))
		s.Script().Start()
	})
}

// TestShortRequestTimeoutHoldsBehindLongerOne: a waiter fails after its own short request
// timeout, although the running request belongs to a waiter with a longer one.
func TestShortRequestTimeoutHoldsBehindLongerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, altered(s.Client(), network))
		if _, err := l.Guarantees(bg); err != nil {
			t.Fatal(err)
		}
		s.Script().Stop()
		longer := make(chan error, 1)
		go func() {
			_, err := l.Lock(bg, "a")
			longer <- err
		}()
		synctest.Wait()
		began := time.Now()
		if _, err := l.Lock(bg, "a", holdfast.TTL(300*time.Millisecond)); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(began) != 100*time.Millisecond {
			t.Errorf("%v after %s, want ErrUnavailable after 100ms", err, time.Since(began))
		}
		if err := <-longer; !errors.Is(err, holdfast.ErrUnavailable) {
			t.Error(err)
		}
		s.Script().Start()
	})
}

// TestErrReadsTheClockOfEveryLockOfLockAll: the context of LockAll ends when the first of its locks is
// no longer valid.
func TestErrReadsTheClockOfEveryLockOfLockAll(t *testing.T) {
	c := &holdfast.FakeClock{}
	s := holdfast.OnClock(memstore.New(), c)
	acquire := s.OnAcquire
	s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if r.Name == "b" {
			c.Ahead.Add(int64(10 * time.Second))
		}
		return acquire(ctx, r)
	}
	l := newLocker(t, s)
	k, err := l.LockAll(bg, []string{"a", "b"})
	must.Succeed(t, err)
	if k.Context().Err() != nil {
		t.Fatal("the context has ended while both locks are valid")
	}
	c.Ahead.Add(int64(20 * time.Second)) // a is no longer valid, b is
	if holdfast.Token(k.Context(), "b") != 0 {
		t.Error("Token returns a token although one of the locks has ended")
	}
	if k.Context().Err() == nil {
		t.Error("Err does not check every lock")
	}
	wantCause(t, k.Context(), holdfast.CauseExpired)
	_ = k.Unlock()
}

// TestBusyErrorOfAnotherLockIsNoBusyAnswer: the context was cancelled with the BusyError of another
// lock as its cause. TryDo does not report this lock as busy.
func TestBusyErrorOfAnotherLockIsNoBusyAnswer(t *testing.T) {
	l := newLocker(t, memstore.New())
	ctx, cancel := context.WithCancelCause(bg)
	cancel(&holdfast.BusyError{Name: "x"})
	ran, err := l.TryDo(ctx, "a", func(context.Context) error { return nil })
	if ran || !errors.Is(err, context.Canceled) || errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("TryDo: %v, %v", ran, err)
	}
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) || errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("Lock: %v", err)
	}
}

// TestLockIsReleasedIfAHookExitsTheCaller: a hook ends the goroutine of the caller. The Locker releases
// its lock, and the ones that LockAll has acquired before it, or withdraws its queue entry.
func TestLockIsReleasedIfAHookExitsTheCaller(t *testing.T) {
	for kind, names := range map[holdfast.EventKind][]string{holdfast.EventAcquired: {"b"}, holdfast.EventQueued: {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			other := newLocker(t, s.Client())
			held := mustLock(t, other, "b")
			if kind == holdfast.EventAcquired {
				unlock(t, held)
			}
			l := newLocker(t, s.Client(), holdfast.WithHooks(onEvent(func(e holdfast.Event) {
				if e.Kind == kind {
					runtime.Goexit()
				}
			})))
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := l.LockAll(bg, names)
				t.Errorf("%s: LockAll returned: %v", kind, err)
			}()
			<-done
			if kind == holdfast.EventQueued {
				unlock(t, held)
			}
			synctest.Wait()
			for _, name := range names {
				wantFree(t, other, name)
			}
		})
	}
}

// TestWaitersServedOneByOneDoNotTimeOut: the store answers the requests of many waiters one by one. The
// last waiter does not time out, because the store answers continuously.
func TestWaitersServedOneByOneDoNotTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := answersAfter(memstore.New(), 50*time.Millisecond)
		s.Edit = network
		l := newLocker(t, s)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				k, err := l.Lock(bg, "a", holdfast.Shared(), holdfast.TTL(600*time.Millisecond))
				if err != nil {
					t.Error(err)
					return
				}
				unlock(t, k)
			})
		}
		all.Wait()
	})
}
