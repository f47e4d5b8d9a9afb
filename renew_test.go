package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestRenewalsDueTogetherGoInOneCall: a renewal includes the renewals that are due within a
// sixteenth of the renewal interval, and no others.
func TestRenewalsDueTogetherGoInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls []string
		s := memstore.New()
		h := &fake{Store: s, OnRenew: func(ctx context.Context, gs []driver.Grant) []driver.Renewal {
			var names []string
			for _, g := range gs {
				names = append(names, g.Name)
			}
			slices.Sort(names)
			calls = append(calls, time.Since(began).String()+" "+strings.Join(names, " "))
			return s.Renew(ctx, gs)
		}}
		l := newLocker(t, h)
		// Each lease is renewed every 8 s, so the window is half a second.
		for _, name := range []string{"a", "b", "c"} {
			defer unlock(t, mustLock(t, l, name, holdfast.TTL(24*time.Second)))
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(8 * time.Second) // the next renewal follows after another twentieth of the TTL at the earliest
		synctest.Wait()
		if want := []string{"8s a b", "8.6s c"}; !slices.Equal(calls, want) {
			t.Errorf("renewals %q, want %q", calls, want)
		}
	})
}

// TestMarginAboveAProvisionalTTL: a waiter leaves while the store has its request, which allows a
// provisional grant. The waiter behind it has a margin longer than the TTL of that grant. It gets the
// lock in its turn, with the validity that it requested.
func TestMarginAboveAProvisionalTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		s := &fake{Store: m, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := m.Acquire(ctx, r)
			if err == nil && r.Wait && r.Provisional {
				g.TTL, g.Provisional = 2500*time.Millisecond, true
			}
			return g, err
		}, OnRenew: func(ctx context.Context, gs []driver.Grant) []driver.Renewal {
			answers := m.Renew(ctx, gs)
			for i := range answers {
				answers[i].TTL = 30 * time.Second
			}
			return answers
		}}
		l, other := newLocker(t, s, holdfast.LocalHandoff(0)), newLocker(t, s, holdfast.LocalHandoff(0))
		held := mustLock(t, other, "a")
		first, leave := context.WithCancel(bg)
		go func() { _, _ = l.Lock(first, "a") }()
		synctest.Wait()
		got := make(chan time.Duration, 2)
		go func() {
			k := mustLock(t, l, "a", holdfast.Margin(10*time.Second))
			got <- k.Remaining()
			unlock(t, k)
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		go func() {
			unlock(t, mustLock(t, other, "a"))
			got <- 0
		}()
		synctest.Wait()
		unlock(t, held)
		if left := <-got; left != 20*time.Second {
			t.Errorf("the lock is valid for %s; 0 means that a later waiter was first", left)
		}
		<-got
	})
}

// TestExpiredLockReportsWhyRenewalsFailed: renewals fail until the lock expires. The loss has the error of the last one.
// A failure before a renewal that succeeded is not the cause of a later loss.
func TestExpiredLockReportsWhyRenewalsFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		refused := driver.Errorf(driver.CodeRefused, "wrong password")
		k := mustLock(t, l, "a", holdfast.TTL(9*time.Second))
		s.Script().FailRenewals("a", 1<<30, refused)
		<-k.Context().Done()
		lost, ok := errors.AsType[*holdfast.LostError](context.Cause(k.Context()))
		if !ok || lost.Cause != holdfast.CauseExpired || lost.Err != refused {
			t.Errorf("%v; want the refusal", context.Cause(k.Context()))
		}
		_ = k.Unlock()

		s.Script().Reset()
		k = mustLock(t, l, "b", holdfast.TTL(9*time.Second))
		s.Script().FailRenewals("b", 1, refused)
		time.Sleep(5 * time.Second) // the renewal at 3 s fails, and the next one succeeds
		must.Succeed(t, s.Script().Lose("b", holdfast.CauseTaken))
		<-k.Context().Done()
		if lost, ok := errors.AsType[*holdfast.LostError](context.Cause(k.Context())); !ok || lost.Err != nil {
			t.Errorf("%v; want no error of the store", context.Cause(k.Context()))
		}
		_ = k.Unlock()
	})
}
