package holdfast_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestUnlockBlocksNoLongerThanTrust: the store does not answer, and the trust left
// is less than the request timeout.
func TestUnlockBlocksNoLongerThanTrust(t *testing.T) {
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
			t.Errorf("Unlock took %s with %s of trust left", took, left)
		}
		s.Script().Reset()
		s.Script().Start()
	})
}

// TestReleaseOutlastsARenewalThatWasNotAnswered: the store has prolonged the lease
// without the holder's knowledge, so a release that fails is tried again for longer
// than the lease that the holder knows of.
func TestReleaseOutlastsARenewalThatWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		h := &hooked{Store: s}
		h.renew = func(_ []driver.Grant, a []driver.Renewal) []driver.Renewal {
			for i := range a {
				a[i] = driver.Renewal{Err: driver.Errorf(driver.Unknown, "the answer was lost")}
			}
			return a
		}
		l, other := newLocker(t, h), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(30*time.Second))
		time.Sleep(26 * time.Second) // renewed within the last: the lease stands for 55 s
		s.Script().FailReleases("a", 1<<30, driver.Errorf(driver.Unavailable, "down"))
		_ = k.Unlock()
		time.Sleep(26 * time.Second)
		wantBusy(t, other, "a")
		s.Script().Reset()
		time.Sleep(2 * time.Second) // the longest pause between two tries
		synctest.Wait()
		wantFree(t, other, "a")
	})
}

// TestRefusedReleaseIsTriedAgain: the store refuses, and then does not any more: the
// name is free soon after or, with a MinHold that the store keeps, at its end. It is
// not kept until the TTL.
func TestRefusedReleaseIsTriedAgain(t *testing.T) {
	for _, minHold := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			r := &recorder{}
			l, other := newLocker(t, s, holdfast.WithHooks(r)), newLocker(t, s.Client())
			k := mustLock(t, l, "a", holdfast.TTL(time.Hour), holdfast.MinHold(minHold))
			began := time.Now()
			s.Script().FailReleases("a", 3, driver.Errorf(driver.Refused, "no rights"))
			if err := k.Unlock(); !errors.Is(err, holdfast.ErrRefused) {
				t.Errorf("Unlock: %v", err)
			}
			unlock(t, mustLock(t, other, "a"))
			if took := time.Since(began); took < minHold || took > minHold+2*time.Second {
				t.Errorf("MinHold %s: free after %s", minHold, took)
			}
			synctest.Wait()
			no, want := holdfast.EventUnconfirmed, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired}
			if want = append(want, no, no, no, holdfast.EventReleased); !slices.Equal(r.kinds(), want) {
				t.Errorf("events %q, want %q", r.kinds(), want)
			}
		})
	}
}

// TestReleaseThatCannotBe: an error that says that asking again is in vain ends the
// matter, and Close does not wait.
func TestReleaseThatCannotBe(t *testing.T) {
	for _, code := range []driver.Code{driver.Invalid, driver.Unsupported, driver.IsClosed} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			l := newLocker(t, s)
			k := mustLock(t, l, "a")
			s.Script().FailReleases("a", 1<<30, driver.Errorf(code, "in vain"))
			if err := k.Unlock(); err == nil {
				t.Error("Unlock is content")
			}
			began := time.Now()
			if err := l.Close(bg); err != nil || time.Since(began) != 0 {
				t.Errorf("%s: Close: %v after %s", code, err, time.Since(began))
			}
		})
	}
}
