package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// swapping is a store with Swap. It counts the calls of Swap, and makes two calls of the store below
// for each, unless the test sets replace.
type swapping struct {
	*fake
	calls   atomic.Int32
	replace func(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error)
}

func (s *swapping) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	s.calls.Add(1)
	if s.replace != nil {
		return s.replace(ctx, old, r, released)
	}
	return s.releaseAndAcquire(ctx, old, r, released)
}

func (s *swapping) releaseAndAcquire(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	released(s.Release(ctx, old, 0))
	return s.Acquire(ctx, r)
}

// lockLater calls Lock for "a" in a goroutine, and returns when that goroutine waits. The channel
// receives the lock, or nil if ctx has ended.
func lockLater(t *testing.T, l *holdfast.Locker, ctx context.Context, o ...holdfast.LockOption) <-chan *holdfast.Lock {
	got := make(chan *holdfast.Lock, 1)
	go func() {
		k, err := l.Lock(ctx, "a", o...)
		if err != nil && ctx.Err() == nil {
			t.Errorf("Lock: %v", err)
		}
		got <- k
	}()
	synctest.Wait()
	return got
}

// beforeSwap returns a lock that was granted after a wait, and a waiter behind it. The Unlock of that
// lock calls Swap.
func beforeSwap(t *testing.T, l *holdfast.Locker, waiting context.Context, o ...holdfast.LockOption) (*holdfast.Lock, <-chan *holdfast.Lock) {
	first := mustLock(t, l, "a")
	holder := lockLater(t, l, bg)
	waiter := lockLater(t, l, waiting, o...)
	unlock(t, first)
	return <-holder, waiter
}

// TestUnlockReleasesAndRequestsInOneCall: the entry of the next local waiter goes to the end of
// the queue, behind the waiter of another Locker.
func TestUnlockReleasesAndRequestsInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		swapper := &swapping{fake: &fake{Store: s}}
		l, other := newLocker(t, swapper, holdfast.LocalHandoff(0)), newLocker(t, s.Client(), holdfast.LocalHandoff(0))
		q := &queueUp{t: t}
		k := mustLock(t, l, "a")
		q.take("l", l, time.Millisecond)
		q.take("o", other, time.Millisecond)
		for range 3 {
			q.take("l", l, time.Millisecond)
		}
		unlock(t, k)
		if got, want := q.served(), "lolll"; got != want {
			t.Errorf("served %s, want %s", got, want)
		}
		if n := swapper.calls.Load(); n != 3 {
			t.Errorf("%d swaps, want 3: the first Unlock comes after the request for the waiter, and the last has no waiter behind it", n)
		}
		wantFree(t, other, "a")
	})
}

// TestLongHoldDelaysNoRequest: a lock is held for longer than driver.HandoffTime. The next local
// waiter then has its queue entry before a waiter of another Locker that comes later.
func TestLongHoldDelaysNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		swapper := &swapping{fake: &fake{Store: s}}
		l, other := newLocker(t, swapper, holdfast.LocalHandoff(0)), newLocker(t, s.Client(), holdfast.LocalHandoff(0))
		k, waiter := beforeSwap(t, l, bg)
		time.Sleep(driver.HandoffTime + time.Millisecond)
		synctest.Wait()
		later := lockLater(t, other, bg)
		unlock(t, k)
		synctest.Wait()
		select {
		case <-later:
			t.Error("a later waiter of another Locker is served first")
		default:
		}
		unlock(t, <-waiter)
		unlock(t, <-later)
		if n := swapper.calls.Load(); n != 0 {
			t.Errorf("%d swaps, want none", n)
		}
	})
}

// TestHalvesOfASwapAreIndependent: one half of a swap fails alone, or the answer to both halves is
// lost. Unlock reports the release alone, and the waiter gets a new, larger token.
func TestHalvesOfASwapAreIndependent(t *testing.T) {
	lost := driver.Errorf(driver.CodeUnknown, "the answer was lost")
	for _, test := range []struct {
		what string
		swap func(s *swapping, ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error)
		want error // the error of Unlock
	}{
		{"released, and not granted", func(s *swapping, ctx context.Context, old driver.Grant, _ driver.Request, released func(error)) (driver.Grant, error) {
			released(s.Release(ctx, old, 0))
			return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "no entry")
		}, nil},
		{"granted, and the old grant had ended", func(s *swapping, ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
			_ = s.Release(ctx, old, 0)
			return s.releaseAndAcquire(ctx, old, r, released)
		}, holdfast.ErrLost},
		{"both applied, and the answer is lost", func(s *swapping, ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
			_, _ = s.releaseAndAcquire(ctx, old, r, func(error) {})
			released(lost)
			return driver.Grant{}, lost
		}, holdfast.ErrUnavailable},
		{"neither applied, and the answer is lost", func(_ *swapping, _ context.Context, _ driver.Grant, _ driver.Request, released func(error)) (driver.Grant, error) {
			released(lost)
			return driver.Grant{}, lost
		}, holdfast.ErrUnavailable},
		{"not sent", func(*swapping, context.Context, driver.Grant, driver.Request, func(error)) (driver.Grant, error) {
			return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "no connection")
		}, nil},
		{"refused", func(_ *swapping, _ context.Context, _ driver.Grant, _ driver.Request, released func(error)) (driver.Grant, error) {
			err := driver.Errorf(driver.CodeRefused, "no rights")
			released(err)
			return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "no entry")
		}, holdfast.ErrRefused},
	} {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				swapper := &swapping{fake: &fake{Store: s}}
				swapper.replace = func(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
					return test.swap(swapper, ctx, old, r, released)
				}
				l, other := newLocker(t, swapper, holdfast.LocalHandoff(0)), newLocker(t, s.Client())
				k, waiter := beforeSwap(t, l, bg)
				if err := k.Unlock(); !errors.Is(err, test.want) {
					t.Errorf("Unlock: %v, want %v", err, test.want)
				}
				next := <-waiter
				if next == nil || next.Token() <= k.Token() {
					t.Fatalf("the waiter got %v after token %d", next, k.Token())
				}
				wantBusy(t, other, "a")
				unlock(t, next)
				synctest.Wait()
				wantFree(t, other, "a")
				if n := swapper.calls.Load(); n != 1 {
					t.Errorf("%d swaps, want 1", n)
				}
			})
		})
	}
}

// TestCancelledWaiterDisturbsNoRelease: the waiter is cancelled while its request and the release are
// in flight, and in the second round the Locker is closed too. The release gets its answer, and
// nothing of the request is left.
func TestCancelledWaiterDisturbsNoRelease(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			swapper := &swapping{fake: &fake{Store: s}}
			underWay, goOn := make(chan struct{}), make(chan struct{})
			swapper.replace = func(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
				close(underWay)
				<-goOn
				if ctx.Err() != nil {
					t.Error("the request was cancelled before the release had its answer")
				}
				return swapper.releaseAndAcquire(ctx, old, r, released)
			}
			l, other := newLocker(t, swapper, holdfast.LocalHandoff(0)), newLocker(t, s.Client())
			ctx, cancel := context.WithCancel(bg)
			k, waiter := beforeSwap(t, l, ctx)
			done := make(chan error, 1)
			go func() { done <- k.Unlock() }()
			<-underWay
			cancel()
			if <-waiter != nil {
				t.Error("the cancelled waiter has a lock")
			}
			if closes {
				go func() { _ = l.Close(bg) }()
			}
			synctest.Wait()
			close(goOn)
			if err := <-done; err != nil {
				t.Errorf("Unlock: %v", err)
			}
			synctest.Wait()
			wantFree(t, other, "a")
		})
	}
}

// TestUnlockBySwapBlocksForTheRequestTimeout: the store does not answer a swap. Unlock returns
// after the request timeout, and the release continues in the background.
func TestUnlockBySwapBlocksForTheRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		swapper := &swapping{fake: &fake{Store: s}}
		swapper.replace = func(ctx context.Context, _ driver.Grant, _ driver.Request, released func(error)) (driver.Grant, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // longer than Unlock may wait
			err := driver.Errorf(driver.CodeUnknown, "no answer")
			released(err)
			return driver.Grant{}, err
		}
		l, other := newLocker(t, swapper, holdfast.LocalHandoff(0), holdfast.RequestTimeout(time.Second)), newLocker(t, s.Client())
		k, waiter := beforeSwap(t, l, bg)
		began := time.Now()
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("Unlock took %s", took)
		}
		synctest.Wait()
		wantFree(t, other, "a") // released in the background, before the swap has returned
		if next := <-waiter; next != nil {
			unlock(t, next)
		}
	})
}

// TestShortWaitDuringHeldBackRequest: a waiter gives up while the request behind a new grant is held
// back. Its error names the holder, and the hooks get one EventQueued for each of the three waiters.
func TestShortWaitDuringHeldBackRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		l := newLocker(t, &swapping{fake: &fake{Store: memstore.New()}}, holdfast.LocalHandoff(0), holdfast.WithHooks(r))
		k, waiter := beforeSwap(t, l, bg)
		_, err := l.Lock(bg, "a", holdfast.Wait(time.Millisecond))
		var busy *holdfast.BusyError
		if !errors.As(err, &busy) || len(busy.Holders) != 1 || busy.Holders[0].Token != k.Token() {
			t.Errorf("%v, want busy with token %d", err, k.Token())
		}
		unlock(t, k)
		unlock(t, <-waiter)
		synctest.Wait()
		queued := 0
		for _, kind := range r.kinds() {
			if kind == holdfast.EventQueued {
				queued++
			}
		}
		if queued != 3 {
			t.Errorf("%d waiters were reported as queued, want 3", queued)
		}
	})
}

// TestSwapOnlyForTheSameRequest: a waiter with another limit or TTL makes a request of its own. A
// lock with a MinHold stays locked for that time, and its release does not go with a request.
func TestSwapOnlyForTheSameRequest(t *testing.T) {
	for _, o := range []holdfast.LockOption{holdfast.Shared(), holdfast.Limit(2), holdfast.TTL(time.Hour)} {
		synctest.Test(t, func(t *testing.T) {
			swapper := &swapping{fake: &fake{Store: memstore.New()}}
			l := newLocker(t, swapper, holdfast.LocalHandoff(0))
			k, waiter := beforeSwap(t, l, bg, o)
			unlock(t, k)
			unlock(t, <-waiter)
			if n := swapper.calls.Load(); n != 0 {
				t.Errorf("%d swaps, want none", n)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		swapper := &swapping{fake: &fake{Store: memstore.New()}}
		l := newLocker(t, swapper, holdfast.LocalHandoff(0))
		first := mustLock(t, l, "a")
		holder, waiter := lockLater(t, l, bg, holdfast.MinHold(time.Second)), lockLater(t, l, bg)
		unlock(t, first)
		k := <-holder
		began := time.Now()
		unlock(t, k)
		unlock(t, <-waiter)
		if took, n := time.Since(began), swapper.calls.Load(); took < time.Second || n != 0 {
			t.Errorf("the next lock came after %s, with %d swaps", took, n)
		}
	})
}

// TestStoreWithoutOrderIsNotSwapped: the store serves waiters in any order, without tokens to reserve. A swap would serve the waiters of this process alone.
func TestStoreWithoutOrderIsNotSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		swapper := &swapping{fake: altered(memstore.New(), func(g *driver.Guarantees) { g.Order, g.Reserves = driver.OrderNone, false })}
		l := newLocker(t, swapper, holdfast.LocalHandoff(0))
		k, waiter := beforeSwap(t, l, bg)
		unlock(t, k)
		unlock(t, <-waiter)
		if n := swapper.calls.Load(); n != 0 {
			t.Errorf("%d swaps, want none", n)
		}
	})
}

// TestStoreDownDuringASwap: the store stops answering while a lock is held, and then the lock is
// unlocked. A later call of Lock returns ErrUnavailable after the request timeout, and not ErrBusy.
func TestStoreDownDuringASwap(t *testing.T) {
	for _, test := range []struct {
		swaps bool          // the store has Swap
		held  time.Duration // before Unlock
	}{{true, 0}, {true, 2 * driver.HandoffTime}, {false, 0}} {
		synctest.Test(t, func(t *testing.T) {
			m := memstore.New()
			swapper := &swapping{fake: altered(m, network)}
			s := driver.Store(swapper.fake)
			if test.swaps {
				s = swapper
			}
			const timeout = time.Second
			l := newLocker(t, s, holdfast.LocalHandoff(0), holdfast.RequestTimeout(timeout))
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			first := mustLock(t, l, "a")
			holder := lockLater(t, l, bg)
			waiter := lockLater(t, l, ctx)
			unlock(t, first)
			m.Script().Stop()
			k := <-holder
			time.Sleep(test.held)
			unlocked := make(chan error, 1)
			go func() { unlocked <- k.Unlock() }()
			synctest.Wait()
			began := time.Now()
			_, err := l.Lock(bg, "a", holdfast.Wait(time.Hour))
			if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrBusy) {
				t.Errorf("swaps %t, held %s: %v, want unavailable", test.swaps, test.held, err)
			}
			if took := time.Since(began); took != timeout {
				t.Errorf("swaps %t, held %s: Lock took %s", test.swaps, test.held, took)
			}
			if err := <-unlocked; !errors.Is(err, holdfast.ErrUnavailable) {
				t.Errorf("Unlock: %v", err)
			}
			if n := swapper.calls.Load(); (n > 0) != (test.swaps && test.held == 0) {
				t.Errorf("swaps %t, held %s: %d swaps", test.swaps, test.held, n)
			}
			cancel()
			<-waiter
			m.Script().Start()
			synctest.Wait()
		})
	}
}
