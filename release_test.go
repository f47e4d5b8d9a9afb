package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestUnlockBlocksNoLongerThanRemaining: the store does not answer, and the validity left
// is less than the request timeout.
func TestUnlockBlocksNoLongerThanRemaining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		k := mustLock(t, l, "a", holdfast.TTL(30*time.Second))
		s.Script().FailRenewals("a", 1<<30, nil)
		time.Sleep(25 * time.Second)
		left := k.Remaining() // 2 s: the margin is a tenth of the TTL
		s.Script().Stop()
		began := time.Now()
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		if took := time.Since(began); took != left || left != 2*time.Second {
			t.Errorf("Unlock took %s with %s of validity left", took, left)
		}
		s.Script().Reset()
		s.Script().Start()
	})
}

// TestReleaseIsRepeatedBeyondAnUnansweredRenewal: the store renewed the lease, and the
// answer was lost. A failed release is then repeated for longer than the last confirmed
// lease lasts.
func TestReleaseIsRepeatedBeyondAnUnansweredRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		h := &fake{Store: s, OnRenew: func(ctx context.Context, gs []driver.Grant) []driver.Renewal {
			s.Renew(ctx, gs)
			return []driver.Renewal{{Err: driver.Errorf(driver.CodeUnknown, "the answer was lost")}}
		}}
		l, other := newLocker(t, h), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(30*time.Second))
		time.Sleep(26 * time.Second) // The store last renewed at 25 s or later, so its lease stands until 55 s at least.
		s.Script().FailReleases("a", 1<<30, driver.Errorf(driver.CodeUnavailable, "down"))
		_ = k.Unlock()
		time.Sleep(26 * time.Second)
		wantBusy(t, other, "a")
		s.Script().Reset()
		time.Sleep(2 * time.Second) // the longest backoff between two tries
		synctest.Wait()
		wantFree(t, other, "a")
	})
}

// TestEndIsRepeatedUntilACoarseLeaseEnds: a failed release or rollback is repeated until the store no longer keeps the
// lease, which a coarse clock of the store delays.
func TestEndIsRepeatedUntilACoarseLeaseEnds(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			// The store may keep a lease for minutes after its TTL. It answers no release or rollback. With silent it
			// grants without an answer.
			s := altered(memstore.New(), func(g *driver.Guarantees) { g.Granularity = 5 * time.Minute })
			var ends atomic.Int64
			end := func() error {
				ends.Add(1)
				return driver.Errorf(driver.CodeUnavailable, "no answer")
			}
			s.OnRelease = func(context.Context, driver.Grant, time.Duration) error { return end() }
			s.OnUndo = func(context.Context, driver.Request) error { return end() }
			s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				g, err := s.Store.Acquire(ctx, r)
				if silent {
					return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "no answer")
				}
				return g, err
			}
			k, err := newLocker(t, s).TryLock(bg, "a", holdfast.TTL(time.Second))
			if (err != nil) != silent {
				t.Fatal(err)
			}
			if k != nil {
				_ = k.Unlock()
			}
			count := func(wait, during time.Duration) int64 {
				time.Sleep(wait)
				before := ends.Load()
				time.Sleep(during)
				return ends.Load() - before
			}
			if count(4*time.Minute, 30*time.Second) == 0 {
				t.Errorf("a request without an answer: %t: its end is no longer repeated, and the lease may stand", silent)
			}
			if n := count(2*time.Minute, time.Minute); n != 0 {
				t.Errorf("a request without an answer: %t: its end is repeated although the lease has ended", silent)
			}
		})
	}
}

// TestRefusedReleaseIsRepeated: the store refuses a few releases. The name is free soon
// after that, or at the end of a MinHold that the store keeps. No caller has to wait until the
// lease expires.
func TestRefusedReleaseIsRepeated(t *testing.T) {
	for _, minHold := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			r := &recorder{}
			l, other := newLocker(t, s, holdfast.WithHooks(r)), newLocker(t, s.Client())
			k := mustLock(t, l, "a", holdfast.TTL(time.Hour), holdfast.MinHold(minHold))
			began := time.Now()
			s.Script().FailReleases("a", 3, driver.Errorf(driver.CodeRefused, "no rights"))
			if err := k.Unlock(); !errors.Is(err, holdfast.ErrRefused) {
				t.Errorf("Unlock: %v", err)
			}
			unlock(t, mustLock(t, other, "a"))
			if took := time.Since(began); took < minHold || took > minHold+2*time.Second {
				t.Errorf("MinHold %s: free after %s", minHold, took)
			}
			synctest.Wait()
			unconfirmed, want := holdfast.EventUnconfirmed, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired}
			if want = append(want, unconfirmed, unconfirmed, unconfirmed, holdfast.EventReleased); !slices.Equal(r.kinds(), want) {
				t.Errorf("events %q, want %q", r.kinds(), want)
			}
		})
	}
}

// TestMinHoldSurvivesAFailedRelease: the first release takes a while, and fails. The repeated one
// keeps the lock until the end of its MinHold, and not longer.
func TestMinHoldSurvivesAFailedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var first sync.Once
		h := &fake{Store: s, OnRelease: func(ctx context.Context, g driver.Grant, keep time.Duration) error {
			first.Do(func() { time.Sleep(10 * time.Second) })
			return s.Release(ctx, g, keep)
		}}
		l, other := newLocker(t, h), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(time.Hour), holdfast.MinHold(time.Minute))
		s.Script().FailReleases("a", 1, driver.Errorf(driver.CodeUnavailable, "down"))
		_ = k.Unlock()
		time.Sleep(48 * time.Second)
		wantBusy(t, other, "a")
		time.Sleep(3 * time.Second)
		wantFree(t, other, "a")
	})
}

// TestImpossibleReleaseIsNotRepeated: an error that makes a retry useless ends the release.
// Close does not wait for it.
func TestImpossibleReleaseIsNotRepeated(t *testing.T) {
	for _, code := range []driver.Code{driver.CodeInvalid, driver.CodeUnsupported, driver.CodeClosed} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			l := newLocker(t, s)
			k := mustLock(t, l, "a")
			s.Script().FailReleases("a", 1<<30, driver.Errorf(code, "in vain"))
			if err := k.Unlock(); err == nil {
				t.Error("Unlock returned no error")
			}
			began := time.Now()
			if err := l.Close(bg); err != nil || time.Since(began) != 0 {
				t.Errorf("%s: Close: %v after %s", code, err, time.Since(began))
			}
		})
	}
}
