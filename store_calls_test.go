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
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestContextEndsBeforeTheRelease(t *testing.T) {
	h := &fake{Store: memstore.New()}
	l := newLocker(t, h)
	k := mustLock(t, l, "a")
	h.OnRelease = func(ctx context.Context, g driver.Grant, keep time.Duration) error {
		if k.Context().Err() == nil {
			t.Error("the release is sent while the context is alive")
		}
		return h.Store.Release(ctx, g, keep)
	}
	unlock(t, k)
}

func TestRenewalAnswersSetTheValidity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fake{Store: memstore.New()}
		answer := func(change func([]driver.Renewal) []driver.Renewal) {
			h.OnRenew = func(ctx context.Context, gs []driver.Grant) []driver.Renewal { return change(h.Store.Renew(ctx, gs)) }
		}
		answer(func(a []driver.Renewal) []driver.Renewal { time.Sleep(2 * time.Second); return a })
		l := newLocker(t, h)
		k := mustLock(t, l, "a", holdfast.TTL(9*time.Second)) // renewed at 3 s, answered at 5 s
		time.Sleep(5100 * time.Millisecond)
		if left := k.Remaining(); left != 8100*time.Millisecond-2100*time.Millisecond {
			t.Errorf("%s left", left)
		}
		unlock(t, k)

		// The answer contains the validity that the store gave, and the number of holders.
		answer(func(a []driver.Renewal) []driver.Renewal { a[0].TTL = 5 * time.Second; return a })
		k = mustLock(t, l, "a", holdfast.TTL(9*time.Second))
		time.Sleep(3100 * time.Millisecond)
		if left := k.Remaining(); left > 4500*time.Millisecond {
			t.Errorf("%s left of a renewal to 5 s", left)
		}
		unlock(t, k)
		answer(func([]driver.Renewal) []driver.Renewal { return nil })
		r := &recorder{}
		l2 := newLocker(t, h, holdfast.WithHooks(r))
		k = mustLock(t, l2, "b", holdfast.TTL(9*time.Second))
		time.Sleep(3100 * time.Millisecond)
		synctest.Wait()
		if got := r.kinds(); got[len(got)-1] != holdfast.EventRenewFailed {
			t.Errorf("%q", got)
		}
		unlock(t, k)
		answer(func([]driver.Renewal) []driver.Renewal {
			return []driver.Renewal{{Cause: driver.CauseSessionEnded, Err: driver.Errorf(driver.CodeNotHeld, "x")}}
		})
		k = mustLock(t, l, "c")
		<-k.Context().Done()
		wantCause(t, k.Context(), holdfast.CauseSessionEnded)
		_ = k.Unlock()
	})
}

// TestGrantForACancelledTryIsReleased: the grant arrives as its caller's context ends.
func TestGrantForACancelledTryIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		ctx, cancel := context.WithCancel(bg)
		h := &fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			defer cancel()
			return s.Acquire(ctx, r)
		}}
		l := newLocker(t, h)
		if _, err := l.TryLock(ctx, "a", holdfast.TTL(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		wantFree(t, newLocker(t, s.Client()), "a")
	})
}

// TestGrantForACancelledRequestIsReleased: the next head has other options than the
// cancelled request. That request is granted, or has an unknown outcome.
func TestGrantForACancelledRequestIsReleased(t *testing.T) {
	for _, unknown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			other := newLocker(t, s.Client())
			first := true
			h := altered(s, network)
			h.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				g, err := s.Acquire(ctx, r)
				if first {
					first = false
					<-ctx.Done() // granted with a slow answer
					if unknown {
						return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "cut")
					}
				}
				return g, err
			}
			l := newLocker(t, h)
			ctx, cancel := context.WithCancel(bg)
			go func() { _, _ = l.Lock(ctx, "a", holdfast.TTL(time.Hour)) }()
			synctest.Wait()
			got := make(chan *holdfast.Lock)
			go func() { k, _ := l.Lock(bg, "a", holdfast.Shared(), holdfast.Wait(20*time.Second)); got <- k }()
			synctest.Wait()
			cancel()
			k := <-got
			if k == nil {
				t.Fatal("the abandoned grant stands")
			}
			st, _ := other.Inspect(bg, "a")
			if len(st.Holders) != 1 || st.Holders[0].Limit != driver.Unlimited {
				t.Errorf("%+v", st.Holders)
			}
			unlock(t, k)
		})
	}
}

func TestLossEndsALingeringLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, _ := holdfast.New(altered(s, func(g *driver.Guarantees) { g.Linger = false }))
		k := mustLock(t, l, "a")
		j, err := l.Lock(k.Context(), "a", holdfast.Reentrant(), holdfast.MinHold(time.Hour))
		must.Succeed(t, err)
		unlock(t, j)
		unlock(t, k)
		synctest.Wait()
		if st, _ := s.Inspect(bg, "a"); len(st.Holders) != 1 {
			t.Error("the join's MinHold is forgotten")
		}
		_ = s.Script().Lose("a", driver.CauseTaken)
		began := time.Now()
		if err := l.Close(bg); err != nil || time.Since(began) != 0 {
			t.Errorf("Close: %v after %s", err, time.Since(began))
		}
	})
}

// lateEnd is a context with a Done channel that is never closed. Only its Err reports the
// end.
type lateEnd struct {
	context.Context
	ended atomic.Bool
}

func (c *lateEnd) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// TestCancelledWaiterIgnoresMinHold: the waiter's context ended when the grant came. The
// caller gets an error, so its MinHold does not count.
func TestCancelledWaiterIgnoresMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		ctx := &lateEnd{Context: bg}
		h := altered(s, network)
		h.OnAcquire = func(call context.Context, r driver.Request) (driver.Grant, error) {
			defer ctx.ended.Store(true)
			return s.Acquire(call, r)
		}
		l, other := newLocker(t, h), newLocker(t, s.Client())
		if _, err := l.Lock(ctx, "a", holdfast.MinHold(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Fatalf("Lock: %v", err)
		}
		synctest.Wait() // it is released in the background
		wantFree(t, other, "a")
	})
}

// TestJoinKeepsTheLeaseRenewed: the outer lock's context has ended. The lock that joined it
// stays valid, and its lease is renewed.
func TestJoinKeepsTheLeaseRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		ctx, cancel := context.WithCancel(bg)
		outer, err := l.Lock(ctx, "a", holdfast.TTL(6*time.Second))
		must.Succeed(t, err)
		inner, err := l.Lock(context.WithoutCancel(outer.Context()), "a", holdfast.Reentrant())
		must.Succeed(t, err)
		cancel()
		time.Sleep(time.Minute)
		if inner.Context().Err() != nil {
			t.Error(context.Cause(inner.Context()))
		}
		unlock(t, inner)
		unlock(t, outer)
	})
}
