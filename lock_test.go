package holdfast_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

var bg = context.Background()

type fake = holdfast.Fake

// altered is a store whose guarantees a test changes.
func altered(s *memstore.Store, edit func(*driver.Guarantees)) *fake {
	return &fake{Store: s, Edit: edit}
}

// network is a change of the guarantees: a request has a timeout.
func network(g *driver.Guarantees) { g.Scope = driver.ScopeNetwork }

// answersAfter is a store that answers each Acquire after d.
func answersAfter(s *memstore.Store, d time.Duration) *fake {
	return &fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		defer time.Sleep(d)
		return s.Acquire(ctx, r)
	}}
}

// newLocker returns a Locker, and closes it at the end of the test.
func newLocker(t testing.TB, s driver.Store, o ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(s, o...)
	must.Succeed(t, err)
	t.Cleanup(func() {
		if err := l.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func mustLock(t testing.TB, l *holdfast.Locker, name string, o ...holdfast.LockOption) *holdfast.Lock {
	t.Helper()
	k, err := l.Lock(bg, name, o...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", name, err)
	}
	return k
}

func unlock(t testing.TB, k *holdfast.Lock) {
	t.Helper()
	if err := k.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

func wantBusy(t testing.TB, l *holdfast.Locker, name string, o ...holdfast.LockOption) *holdfast.BusyError {
	t.Helper()
	k, err := l.TryLock(bg, name, o...)
	var busy *holdfast.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, holdfast.ErrBusy) {
		t.Fatalf("TryLock = %v, %v; want busy", k, err)
	}
	return busy
}

func wantCause(t testing.TB, ctx context.Context, want holdfast.Cause) *holdfast.LostError {
	t.Helper()
	var lost *holdfast.LostError
	if cause := context.Cause(ctx); !errors.As(cause, &lost) || lost.Cause != want {
		t.Fatalf("cause %v, want %s", cause, want)
	}
	return lost
}

func TestLockIsRenewedAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(3*time.Second))
		if k.Name() != "a" || k.Slot() != -1 || k.Token() == 0 {
			t.Errorf("lock %q, slot %d, token %d", k.Name(), k.Slot(), k.Token())
		}
		for range 100 {
			time.Sleep(time.Second)
			if err := k.Context().Err(); err != nil {
				t.Fatal(context.Cause(k.Context()))
			}
			if left := k.Remaining(); left < 1500*time.Millisecond || left > 2700*time.Millisecond {
				t.Fatalf("%s of validity left", left)
			}
			wantBusy(t, other, "a")
		}
		unlock(t, k)
		unlock(t, k) // a second Unlock does nothing
		if !errors.Is(context.Cause(k.Context()), holdfast.ErrReleased) || k.Remaining() != 0 {
			t.Errorf("after Unlock: %v, %s", context.Cause(k.Context()), k.Remaining())
		}
		unlock(t, mustLock(t, other, "a"))
	})
}

// TestContextEndsBeforeTheStoreGrantsAgain: no renewal succeeds, and the context ends earlier than
// the lease, by the option Margin.
func TestContextEndsBeforeTheStoreGrantsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		began := time.Now()
		k := mustLock(t, l, "a", holdfast.TTL(10*time.Second), holdfast.Margin(2*time.Second))
		s.Script().FailRenewals("a", 1<<30, nil)
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			next := mustLock(t, other, "a")
			if next.Token() <= k.Token() {
				t.Errorf("token %d after %d", next.Token(), k.Token())
			}
			if k.Context().Err() == nil {
				t.Error("granted to another Locker while the context is alive")
			}
			if got := time.Since(began); got != 10*time.Second {
				t.Errorf("granted after %s, want 10s", got)
			}
			unlock(t, next)
		}()
		<-k.Context().Done()
		if got := time.Since(began); got != 8*time.Second {
			t.Errorf("context ended after %s, want 8s", got)
		}
		lost := wantCause(t, k.Context(), holdfast.CauseExpired)
		if lost.Token != k.Token() || lost.Name != "a" {
			t.Errorf("%+v", lost)
		}
		<-waited
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// TestFailedRenewalsAreRepeated: the Locker repeats failed renewals in time, and the lock is kept.
func TestFailedRenewalsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		k := mustLock(t, l, "a", holdfast.TTL(9*time.Second))
		s.Script().FailRenewals("a", 4, nil)
		s.Script().DelayRenewal("a", time.Second)
		time.Sleep(time.Minute)
		if k.Context().Err() != nil {
			t.Fatal(context.Cause(k.Context()))
		}
		unlock(t, k)
	})
}

func TestLossIsPushedOrFoundByRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		k := mustLock(t, l, "a")
		must.Succeed(t, s.Script().Lose("a", driver.CauseSessionEnded))
		<-k.Context().Done()
		wantCause(t, k.Context(), holdfast.CauseSessionEnded)
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}

		k = mustLock(t, l, "a") // the grant ends without a notification: the next renewal detects that
		s.Script().Forget("a")
		began := time.Now()
		<-k.Context().Done()
		wantCause(t, k.Context(), holdfast.CauseGone)
		if got := time.Since(began); got > 10*time.Second {
			t.Errorf("the Locker detected the loss after %s", got)
		}

		k = mustLock(t, l, "a") // the grant ends without a notification: the release detects that
		s.Script().Forget("a")
		err := k.Unlock()
		var lost *holdfast.LostError
		if !errors.As(err, &lost) || lost.Cause != holdfast.CauseGone {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestDoReturnsLossesAndErrorsOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		own := errors.New("own error")
		lose := func(context.Context) error { return s.Script().Lose("a", driver.CauseTaken) }

		if err := l.Do(bg, "a", func(context.Context) error { return nil }); err != nil {
			t.Errorf("success: %v", err)
		}
		if err := l.Do(bg, "a", func(context.Context) error { return own }); err != own {
			t.Errorf("own error: %v", err)
		}
		if err := l.Do(bg, "a", lose); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("lost, nil: %v", err)
		}
		err := l.Do(bg, "a", func(ctx context.Context) error { _ = lose(ctx); return own })
		if !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, own) {
			t.Errorf("lost, own error: %v", err)
		}
		err = l.Do(bg, "a", func(ctx context.Context) error { _ = lose(ctx); <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, holdfast.ErrLost) || errors.Is(err, context.Canceled) {
			t.Errorf("lost, error of the context: %v", err)
		}
		err = l.Do(bg, "a", func(ctx context.Context) error { _ = lose(ctx); return errors.Join(ctx.Err(), own) })
		if !errors.Is(err, own) {
			t.Errorf("lost, own error joined to that of the context: %v", err)
		}
		err = l.Do(bg, "b", func(ctx context.Context) error {
			return l.Do(ctx, "a", func(ctx context.Context) error {
				_ = s.Script().Lose("b", driver.CauseTaken)
				_ = lose(ctx)
				return own
			})
		})
		if !errors.Is(err, own) || !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("both of two nested locks lost, own error: %v", err)
		}
		s.Script().FailReleases("a", 1, driver.Errorf(driver.CodeUnknown, "no answer"))
		if err := l.Do(bg, "a", func(context.Context) error { return nil }); err != nil {
			t.Errorf("release not confirmed after success: %v", err)
		}

		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic was not passed on to the caller")
				}
			}()
			_ = l.Do(bg, "a", func(context.Context) error { panic("boom") })
		}()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Do(bg, "a", func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		unlock(t, mustLock(t, l, "a")) // the name is free after both

		k := mustLock(t, l, "a")
		ran, err := newLocker(t, s.Client()).TryDo(bg, "a", func(context.Context) error { t.Error("ran"); return nil })
		if ran || err != nil {
			t.Errorf("TryDo of a held name: %t, %v", ran, err)
		}
		unlock(t, k)
		if ran, err = l.TryDo(bg, "a", func(context.Context) error { return own }); !ran || err != own {
			t.Errorf("TryDo: %t, %v", ran, err)
		}
	})
}

func TestMaxHoldEndsTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		began := time.Now()
		k := mustLock(t, l, "a", holdfast.TTL(6*time.Second), holdfast.MaxHold(15*time.Second))
		<-k.Context().Done()
		if got := time.Since(began); got != 15*time.Second || !errors.Is(context.Cause(k.Context()), holdfast.ErrHoldLimit) {
			t.Errorf("after %s: %v", got, context.Cause(k.Context()))
		}
		wantBusy(t, other, "a") // The Locker no longer renews the lease: it stands until Unlock or its TTL.
		next := mustLock(t, other, "a")
		if got := time.Since(began); got < 15*time.Second || got > 21*time.Second {
			t.Errorf("granted to the other Locker after %s", got)
		}
		unlock(t, next)

		k = mustLock(t, l, "b", holdfast.MaxHold(time.Second))
		<-k.Context().Done()
		unlock(t, k) // no loss
	})
}

// TestDrainZeroEndsTheRenewalWithTheCallersContext: with Drain(0) the renewal ends with the
// caller's context. The lease then stands until Unlock or its TTL.
func TestDrainZeroEndsTheRenewalWithTheCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		stop := errors.New("stopped by the caller")
		ctx, cancel := context.WithCancelCause(bg)
		k, err := l.Lock(ctx, "a", holdfast.TTL(6*time.Second), holdfast.Drain(0))
		must.Succeed(t, err)
		cancel(stop)
		if cause := context.Cause(k.Context()); cause != stop {
			t.Errorf("cause %v", cause)
		}
		wantBusy(t, other, "a")
		unlock(t, k)
		unlock(t, mustLock(t, other, "a"))

		// Abandoned without Unlock, the lease expires.
		ctx, cancel = context.WithCancelCause(bg)
		if _, err := l.Lock(ctx, "a", holdfast.TTL(6*time.Second), holdfast.Drain(0)); err != nil {
			t.Fatal(err)
		}
		cancel(stop)
		began := time.Now()
		unlock(t, mustLock(t, other, "a"))
		if got := time.Since(began); got > 6*time.Second {
			t.Errorf("free after %s", got)
		}
	})
}

// TestMinHoldKeepsTheLockAfterUnlock: also if Close is what ends the lock.
func TestMinHoldKeepsTheLockAfterUnlock(t *testing.T) {
	for i := range 4 {
		lingers, held := i%2 == 0, i >= 2
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			store := driver.Store(s)
			if !lingers {
				store = altered(s, func(g *driver.Guarantees) { g.Linger = false })
			}
			l, err := holdfast.New(store)
			must.Succeed(t, err)
			other := newLocker(t, s.Client())
			began := time.Now()
			a := mustLock(t, l, "a", holdfast.MinHold(20*time.Second), holdfast.TTL(6*time.Second))
			if !held {
				unlock(t, a)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("Unlock waited %s", took)
			}
			closed := make(chan error, 1)
			go func() { closed <- l.Close(bg) }()
			synctest.Wait()
			if held {
				if err := a.Unlock(); !errors.Is(err, holdfast.ErrLost) || a.Context().Err() == nil {
					t.Errorf("Unlock after Close: %v, context: %v", err, a.Context().Err())
				}
			}
			if !lingers {
				select {
				case err := <-closed:
					t.Errorf("Close did not wait for the end of MinHold: %v", err)
				default:
				}
			}
			k := mustLock(t, other, "a")
			if took := time.Since(began); took < 20*time.Second || took > 27*time.Second {
				t.Errorf("lingers %t, held %t: granted to the other Locker after %s", lingers, held, took)
			}
			unlock(t, k)
			if err := <-closed; err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// TestKeepReplacesMinHold: the last Keep decides until when the store keeps the lock after Unlock, counted from the
// call, for each name of LockAll.
func TestKeepReplacesMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k, err := l.LockAll(bg, []string{"a", "b"}, holdfast.MinHold(time.Hour))
		must.Succeed(t, err)
		time.Sleep(time.Minute)
		k.Keep(20 * time.Second)
		unlock(t, k)
		for _, name := range []string{"a", "b"} {
			wantBusy(t, other, name)
		}
		time.Sleep(19 * time.Second)
		wantBusy(t, other, "a")
		time.Sleep(2 * time.Second)
		for _, name := range []string{"a", "b"} {
			k, err := other.TryLock(bg, name, holdfast.MinHold(time.Minute))
			if err != nil {
				t.Fatalf("after the time of Keep: %v", err)
			}
			k.Keep(-time.Second)
			unlock(t, k)
			unlock(t, mustLock(t, l, name))
		}
	})
}

// TestKeepCountsFromTheGrant: the answer with the grant took a while, which is no part of the time of Keep.
func TestKeepCountsFromTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, answersAfter(s, 5*time.Second)), newLocker(t, s.Client())
		k := mustLock(t, l, "a")
		k.Keep(0)
		unlock(t, k)
		k, err := other.TryLock(bg, "a")
		must.Succeed(t, err)
		unlock(t, k)
	})
}

func TestReentrantLockJoinsTheLockOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		k := mustLock(t, l, "a")
		ctx := k.Context()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, holdfast.ErrSelfDeadlock) {
			t.Errorf("Lock of a held name: %v", err)
		}
		if _, err := l.TryLock(ctx, "a"); !errors.Is(err, holdfast.ErrSelfDeadlock) {
			t.Errorf("TryLock of a held name: %v", err)
		}
		b, err := l.Lock(ctx, "b") // other names are not affected
		must.Succeed(t, err)
		if _, err := l.Lock(b.Context(), "a"); !errors.Is(err, holdfast.ErrSelfDeadlock) {
			t.Errorf("Lock of a name that an outer context holds: %v", err)
		}
		if holdfast.Token(b.Context(), "a") != k.Token() || holdfast.Token(b.Context(), "b") != b.Token() || holdfast.Token(ctx, "b") != 0 {
			t.Error("Token does not find the locks of the context")
		}
		inner, err := l.Lock(b.Context(), "a", holdfast.Reentrant())
		must.Succeed(t, err)
		shared, err := l.Lock(ctx, "a", holdfast.Reentrant(), holdfast.Shared())
		if err != nil {
			t.Fatal(err) // exclusive covers shared
		}
		if inner.Token() != k.Token() || shared.Token() != k.Token() {
			t.Error("a reentrant lock has another token")
		}
		unlock(t, shared)
		unlock(t, k) // The outer lock is unlocked first: the grant stands until the last Unlock.
		if inner.Context().Err() == nil {
			t.Error("a context outlives its parent")
		}
		wantBusy(t, l, "a")
		unlock(t, inner)
		unlock(t, b)
		unlock(t, mustLock(t, l, "a"))

		// A shared lock cannot become exclusive, and a semaphore cannot be reentrant.
		for _, tc := range []struct{ have, want []holdfast.LockOption }{
			{[]holdfast.LockOption{holdfast.Shared()}, nil},
			{[]holdfast.LockOption{holdfast.Limit(3)}, []holdfast.LockOption{holdfast.Limit(3)}},
			{[]holdfast.LockOption{holdfast.Limit(3)}, nil},
			{nil, []holdfast.LockOption{holdfast.Limit(3)}},
		} {
			k := mustLock(t, l, "a", tc.have...)
			if _, err := l.Lock(k.Context(), "a", append(tc.want, holdfast.Reentrant())...); !errors.Is(err, holdfast.ErrSelfDeadlock) {
				t.Errorf("%v", err)
			}
			unlock(t, k)
		}

		// A loss ends every reentrant lock. A later call does not join the lost lock.
		k = mustLock(t, l, "a")
		inner, err = l.Lock(context.WithoutCancel(k.Context()), "a", holdfast.Reentrant())
		must.Succeed(t, err)
		_ = s.Script().Lose("a", driver.CauseTaken)
		wantCause(t, inner.Context(), holdfast.CauseTaken)
		fresh, err := l.Lock(context.WithoutCancel(k.Context()), "a", holdfast.Reentrant())
		if err != nil || fresh.Token() == k.Token() {
			t.Fatalf("joined a lost lock: %v, %v", fresh, err)
		}
		unlock(t, fresh)
		_, _ = inner.Unlock(), k.Unlock()
	})
}

// TestGoroutinesOfOneContextExcludeEachOther: goroutines that use the context of a lock are
// refused, or join that lock with Reentrant. Goroutines with a context of NewOwner wait for it, and exclude each other.
func TestGoroutinesOfOneContextExcludeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		k := mustLock(t, l, "a")
		var refused, joined, inside atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := l.Lock(k.Context(), "a"); errors.Is(err, holdfast.ErrSelfDeadlock) {
					refused.Add(1)
				}
				j, err := l.Lock(k.Context(), "a", holdfast.Reentrant())
				if err == nil {
					joined.Add(1)
					unlock(t, j)
				}
			})
		}
		wg.Wait()
		if refused.Load() != 8 || joined.Load() != 8 {
			t.Errorf("%d refused, %d joined", refused.Load(), joined.Load())
		}
		n := 0
		under, beside := holdfast.NewOwner(k.Context()), holdfast.NewOwner(context.WithoutCancel(k.Context()))
		for ctx, want := range map[context.Context]error{under: context.Canceled, beside: nil} { // Unlock ends one of them
			for range 8 {
				wg.Go(func() {
					err := l.Do(ctx, "a", func(context.Context) error {
						if inside.Add(1) != 1 || k.Context().Err() == nil {
							t.Error("two goroutines hold the lock together")
						}
						n++
						inside.Add(-1)
						return nil
					})
					if !errors.Is(err, want) {
						t.Errorf("%v, want %v", err, want)
					}
				})
			}
		}
		if holdfast.Token(beside, "a") != 0 {
			t.Error("the context of a new owner has the lock of the old owner")
		}
		synctest.Wait()
		unlock(t, k)
		wg.Wait()
		if n != 8 {
			t.Errorf("%d goroutines got the lock, want 8", n)
		}
	})
}

// TestInnermostLockDecidesToken: a context carries locks of one name from two stores. After the inner one has ended,
// the token of the outer one must not take its place.
func TestInnermostLockDecidesToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := memstore.New(), memstore.New()
		old, next := newLocker(t, from), newLocker(t, to)
		for range 3 { // the tokens of the old store are larger
			unlock(t, mustLock(t, old, "a"))
		}
		outer := mustLock(t, old, "a")
		inner, err := next.Lock(outer.Context(), "a")
		must.Succeed(t, err)
		ctx := context.WithoutCancel(inner.Context())
		want := func(when string, any, ofOld, ofNext uint64) {
			t.Helper()
			if got := holdfast.Token(ctx, "a"); got != any {
				t.Errorf("%s: Token is %d, want %d", when, got, any)
			}
			if got := old.Token(ctx, "a"); got != ofOld {
				t.Errorf("%s: Token of the outer Locker is %d, want %d", when, got, ofOld)
			}
			if got := next.Token(ctx, "a"); got != ofNext {
				t.Errorf("%s: Token of the inner Locker is %d, want %d", when, got, ofNext)
			}
		}
		want("both are held", inner.Token(), outer.Token(), inner.Token())
		_ = to.Script().Lose("a", driver.CauseTaken)
		<-inner.Context().Done()
		want("the inner one is lost", 0, outer.Token(), 0)
		if holdfast.Wanted(ctx, "a") != nil {
			t.Error("the outer lock reports its waiters as those of the inner one")
		}
		unlock(t, outer)
		want("both have ended", 0, 0, 0)
	})
}

func TestLockAllIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k, err := l.LockAll(bg, []string{"c", "a", "b", "a"})
		must.Succeed(t, err)
		grants := k.Leases()
		if len(grants) != 3 || grants[0].Name != "a" || grants[1].Name != "b" || grants[2].Name != "c" {
			t.Fatalf("%+v", grants)
		}
		for _, g := range grants {
			if g.Token != holdfast.Token(k.Context(), g.Name) {
				t.Errorf("%+v", g)
			}
			wantBusy(t, other, g.Name)
		}
		_ = s.Script().Lose("a", driver.CauseTaken) // the loss of one name ends the context of all
		<-k.Context().Done()
		wantCause(t, k.Context(), holdfast.CauseTaken)
		if k.Remaining() != 0 {
			t.Error("a lost lock has validity left")
		}
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}

		// Wait limits the wait for all names together.
		held := mustLock(t, other, "b")
		began := time.Now()
		if _, err := l.LockAll(bg, []string{"a", "b", "c"}, holdfast.Wait(5*time.Second)); !errors.Is(err, holdfast.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
		unlock(t, mustLock(t, other, "a"))
		unlock(t, mustLock(t, other, "c"))
		unlock(t, held)

		if err := l.DoAll(bg, []string{"b", "a"}, func(ctx context.Context) error { return s.Script().Lose("b", driver.CauseTaken) }); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		if _, err := l.LockAll(bg, nil); !errors.Is(err, holdfast.ErrInvalid) {
			t.Error(err)
		}
	})
}
