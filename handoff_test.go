package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestHandoffKeepsTheTokenAMaximumNumberOfTimes: the lease goes from goroutine to goroutine
// with its token, and after the maximum number of handoffs to another Locker.
func TestHandoffKeepsTheTokenAMaximumNumberOfTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		r := &recorder{}
		l, other := newLocker(t, s, holdfast.LocalHandoff(3), holdfast.WithHooks(r)), newLocker(t, s.Client())
		k := mustLock(t, l, "a")
		var tokens []uint64
		var wg sync.WaitGroup
		take := func(l *holdfast.Locker) {
			wg.Go(func() {
				k := mustLock(t, l, "a")
				tokens = append(tokens, k.Token())
				time.Sleep(time.Second)
				unlock(t, k)
			})
			synctest.Wait()
		}
		take(l)
		take(other)
		for range 5 {
			take(l)
		}
		first := k.Token()
		unlock(t, k)
		wg.Wait()
		// The local queue's entry comes before the other Locker's.
		want := []uint64{first, first, first, first + 1, first + 2, first + 1, first + 1}
		slices.Sort(tokens[3:])
		slices.Sort(want[3:])
		if !slices.Equal(tokens, want) {
			t.Errorf("tokens %v, want %v", tokens, want)
		}
		acquired, released := 0, 0
		for _, kind := range r.kinds() {
			switch kind {
			case holdfast.EventAcquired:
				acquired++
			case holdfast.EventReleased:
				released++
			}
		}
		if acquired != 7 || released != 7 {
			t.Errorf("%d acquired, %d released; want 7 of each", acquired, released)
		}
	})
}

// TestLeaseAfterAHandoffIsRenewedAndExclusive: a lease that was handed off is renewed, can
// be lost, and excludes as before. A waiter with other options does not get it.
func TestLeaseAfterAHandoffIsRenewedAndExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s, holdfast.LocalHandoff(holdfast.MaxHandoff)), newLocker(t, s.Client())
		var k *holdfast.Lock
		pass := func(o ...holdfast.LockOption) *holdfast.Lock {
			got := make(chan *holdfast.Lock)
			go func() { got <- mustLock(t, l, "a", o...) }()
			synctest.Wait()
			unlock(t, k)
			return <-got
		}
		k = mustLock(t, l, "a")
		token := k.Token()
		for range 3 {
			k = pass(holdfast.Reason("next"))
		}
		if k.Token() != token {
			t.Errorf("token %d, want %d", k.Token(), token)
		}
		time.Sleep(5 * time.Minute) // renewed on
		wantBusy(t, other, "a")
		if k.Context().Err() != nil {
			t.Fatal(context.Cause(k.Context()))
		}
		_ = s.Script().Lose("a", driver.CauseTaken)
		<-k.Context().Done()
		wantCause(t, k.Context(), holdfast.CauseTaken)
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}

		k = mustLock(t, l, "a")
		token = k.Token()
		if k = pass(holdfast.Shared()); k.Token() == token {
			t.Error("an exclusive grant passed on to a reader")
		}
		token = k.Token()
		if k = pass(); k.Token() == token {
			t.Error("a shared grant passed on")
		}
		token = k.Token()
		if k = pass(holdfast.TTL(time.Minute)); k.Token() == token {
			t.Error("a grant of another TTL passed on")
		}
		unlock(t, k)

		k = mustLock(t, l, "a", holdfast.MinHold(time.Minute))
		token = k.Token()
		began := time.Now()
		if k = pass(); k.Token() == token || time.Since(began) < time.Minute {
			t.Errorf("passed on within its MinHold, after %s", time.Since(began))
		}
		unlock(t, k)
		wantFree(t, other, "a")
	})
}

// TestHandoffWithCancelledWaitersExcludes counts under the lock of two Lockers.
func TestHandoffWithCancelledWaitersExcludes(t *testing.T) {
	s := memstore.New()
	l, other := newLocker(t, s, holdfast.LocalHandoff(10)), newLocker(t, s.Client(), holdfast.LocalHandoff(10))
	n, want := 0, 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 8 {
		locker := []*holdfast.Locker{l, other}[i%2]
		wg.Go(func() {
			for j := range 200 {
				ctx, cancel := context.WithTimeout(bg, time.Duration(1+j%7)*time.Millisecond)
				k, err := locker.Lock(ctx, "a")
				if err == nil {
					n++
					mu.Lock()
					want++
					mu.Unlock()
					unlock(t, k)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if n != want {
		t.Errorf("%d, want %d", n, want)
	}
	unlock(t, mustLock(t, l, "a", holdfast.Wait(10*time.Second)))
}
