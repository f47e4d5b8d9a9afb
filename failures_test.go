package holdfast_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestJoinWithADeadContextLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(time.Hour))
		dead, cancel := context.WithCancel(k.Context())
		cancel()
		if _, err := l.Lock(dead, "a", holdfast.Reentrant()); !errors.Is(err, context.Canceled) {
			t.Fatalf("%v", err)
		}
		unlock(t, k)
		wantFree(t, other, "a")
	})
}

// TestErrorsAreOneLine: an error can be logged and printed in one line.
func TestErrorsAreOneLine(t *testing.T) {
	_, err := newLocker(t, &fake{Store: memstore.New(), OnAcquire: func(context.Context, driver.Request) (driver.Grant, error) {
		return driver.Grant{}, driver.Errorf(driver.CodeRefused, "%w", errors.Join(errors.New("failed to connect:\n\tfirst"), errors.New("second")))
	}}).Lock(bg, "a")
	const want = `holdfast: "a" on memory: refused by the store: failed to connect: first; second`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	lost := &holdfast.LostError{Name: "a", Store: "s", Cause: holdfast.CauseGone, Err: errors.Join(errors.New("x"), errors.New("y")), Work: errors.Join(errors.New("z"), errors.New("w"))}
	busy := &holdfast.BusyError{Name: "a", Store: "s", Err: errors.Join(errors.New("x"), errors.New("y"))}
	for _, err := range []error{lost, busy} {
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q", err)
		}
	}
}

func TestCloseWaitsForARunningUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		other := newLocker(t, s.Client())
		l, _ := holdfast.New(&fake{Store: s, OnRelease: func(ctx context.Context, g driver.Grant, keep time.Duration) error {
			time.Sleep(time.Second)
			return s.Release(ctx, g, keep)
		}})
		k := mustLock(t, l, "a")
		done := make(chan struct{})
		go func() { defer close(done); _ = k.Unlock() }()
		synctest.Wait() // the release is in flight
		must.Report(t, l.Close(bg))
		if st, _ := other.Inspect(bg, "a"); len(st.Holders) != 0 {
			t.Error("Close returned before the release was confirmed")
		}
		<-done
	})
}

func TestFailedLockAllIgnoresMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		b := mustLock(t, other, "b")
		if _, err := l.LockAll(bg, []string{"a", "b"}, holdfast.MinHold(time.Hour), holdfast.Wait(time.Second)); err == nil {
			t.Fatal("granted beside the holder")
		}
		wantFree(t, other, "a")
		unlock(t, b)
	})
}

func TestMinHoldOutlivesTheCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, altered(s, func(g *driver.Guarantees) { g.Linger = false }))
		other := newLocker(t, s.Client())
		ctx, cancel := context.WithCancel(bg)
		began := time.Now()
		k, err := l.Lock(ctx, "a", holdfast.TTL(6*time.Second), holdfast.MinHold(20*time.Second))
		must.Succeed(t, err)
		time.Sleep(time.Second)
		cancel()
		time.Sleep(2 * time.Second)
		unlock(t, k)
		n := mustLock(t, other, "a")
		if took := time.Since(began); took < 20*time.Second {
			t.Errorf("MinHold 20s, granted to another Locker after %s", took)
		}
		unlock(t, n)
	})
}

// breakNotify returns a store that only notifies a holder of a break, and a function that does so. The grant stands
// until its release.
func breakNotify(s *memstore.Store) (store *fake, notify func()) {
	var from driver.Requester
	return &fake{
		Store: s,
		Edit:  func(g *driver.Guarantees) { g.Break, g.Linger = driver.BreakNotify, false },
		OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			from = r.From
			g, err := s.Acquire(ctx, r)
			g.TTL = driver.Forever
			return g, err
		},
	}, func() { from.Lost(driver.CauseTaken, nil) }
}

// TestLeaseThatWasRequestedToEndIsReleased: at once if only its MinHold is left, else by Close.
func TestLeaseThatWasRequestedToEndIsReleased(t *testing.T) {
	for _, lingers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			a, requestEnd := breakNotify(s)
			l, other := newLocker(t, a), newLocker(t, s.Client())
			if lingers {
				unlock(t, mustLock(t, l, "a", holdfast.TTL(holdfast.MaxTTL), holdfast.MinHold(time.Hour)))
			} else {
				mustLock(t, l, "a", holdfast.TTL(holdfast.MaxTTL))
			}
			wantBusy(t, other, "a")
			requestEnd()
			if synctest.Wait(); !lingers {
				wantBusy(t, other, "a")
				must.Report(t, l.Close(bg))
			}
			wantFree(t, other, "a")
		})
	}
}

func TestShortLocksDoNotStarveLongRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, &fake{Store: s, OnRenew: func(ctx context.Context, gs []driver.Grant) []driver.Renewal {
			if err := backoff.Sleep(ctx, 60*time.Millisecond); err != nil {
				return slices.Repeat([]driver.Renewal{{Err: err}}, len(gs))
			}
			return s.Renew(ctx, gs)
		}})
		long := mustLock(t, l, "long") // 30 s
		end := time.Now().Add(2 * time.Minute)
		for time.Now().Before(end) && long.Context().Err() == nil {
			k := mustLock(t, l, "short", holdfast.TTL(150*time.Millisecond))
			time.Sleep(120 * time.Millisecond)
			if err := k.Unlock(); err != nil {
				t.Fatal("short:", err)
			}
		}
		if long.Context().Err() != nil {
			t.Error(context.Cause(long.Context()))
		}
		_ = long.Unlock()
	})
}

func TestUndosDoNotBlockOneAnother(t *testing.T) {
	for _, hang := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			var off atomic.Bool
			h := &fake{Store: s, OnUndo: func(ctx context.Context, r driver.Request) error {
				switch {
				case r.Name != "sick" || off.Load():
					return s.Undo(ctx, r)
				case hang:
					<-ctx.Done()
					return ctx.Err()
				}
				return errors.New("down")
			}}
			l, other := newLocker(t, h), newLocker(t, s.Client())
			for range 10 {
				s.Script().LoseAcquireAnswer("sick", memstore.Dropped, 0)
				_, err := l.TryLock(bg, "sick")
				if err == nil {
					t.Fatal("?")
				}
			}
			time.Sleep(30 * time.Second)
			s.Script().LoseAcquireAnswer("well", memstore.Applied, 0)
			if _, err := l.TryLock(bg, "well", holdfast.TTL(time.Hour)); err == nil {
				t.Fatal("?")
			}
			began := time.Now()
			unlock(t, mustLock(t, other, "well"))
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("hang %t: the undo of a healthy name took %s", hang, took)
			}
			off.Store(true)
		})
	}
}

// onEvent is a hook.
type onEvent func(holdfast.Event)

func (h onEvent) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }
func (h onEvent) Event(_ context.Context, e holdfast.Event)                   { h(e) }

// TestHookStopsNoRelease: a hook blocks, or ends its goroutine, as t.FailNow does. The Locker continues the releases in
// the background.
func TestHookStopsNoRelease(t *testing.T) {
	for _, blocks := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			block := make(chan struct{})
			l, other := newLocker(t, s, holdfast.WithHooks(onEvent(func(e holdfast.Event) {
				if e.Kind != holdfast.EventReleased || e.Name != "a" {
					return
				}
				if !blocks {
					runtime.Goexit()
				}
				<-block
			}))), newLocker(t, s.Client())
			for _, name := range []string{"a", "b"} {
				k := mustLock(t, l, name, holdfast.TTL(time.Hour))
				s.Script().FailReleases(name, 1, driver.Errorf(driver.CodeUnknown, "cut"))
				_ = k.Unlock()
				time.Sleep(time.Minute)
			}
			wantFree(t, other, "b")
			close(block)
		})
	}
}

func TestUnlockOfSeveralBlocksNoLongerThanOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		k, err := l.LockAll(bg, []string{"a", "b", "c", "d", "e"}, holdfast.TTL(time.Minute))
		must.Succeed(t, err)
		s.Script().Stop()
		began := time.Now()
		_ = k.Unlock()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Unlock took %s", took)
		}
		s.Script().Start()
	})
}

// TestEndOfTheContextIsReportedBesideTheStoresError: a store that reports its own timeout
// when the caller's context ends does not hide that end.
func TestEndOfTheContextIsReportedBesideTheStoresError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := altered(memstore.New(), func(g *driver.Guarantees) { g.Scope, g.TryFirst = driver.ScopeNetwork, true })
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "dial: i/o timeout")
		}
		l := newLocker(t, s)
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), "i/o timeout") {
			t.Errorf("Lock: %v", err)
		}
	})
}

func TestExpiredGrantsAreRetriedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := altered(memstore.New(), network)
		var requests atomic.Int64
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if requests.Add(1) > 5000 {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
			g, err := s.Store.Acquire(ctx, r)
			g.SentAt = driver.Instant{} // a TTL of 0, or a call of Lost before the return, has the same effect
			return g, err
		}
		l := newLocker(t, s)
		_, err := l.Lock(bg, "a", holdfast.Wait(10*time.Second))
		if n := requests.Load(); n > 100 || !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("%d requests in 10 s; %v", n, err)
		}
	})
}

type mutexed struct {
	*memstore.Store
	mu   sync.Mutex
	from driver.Requester
}

func (s *mutexed) String() string { s.mu.Lock(); defer s.mu.Unlock(); return "mutexed" }
func (s *mutexed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, r)
	s.mu.Lock()
	s.from = r.From
	s.mu.Unlock()
	return g, err
}

func TestStoreMayCallLostUnderItsMutex(t *testing.T) {
	s := &mutexed{Store: memstore.New()}
	l, _ := holdfast.New(s)
	mustLock(t, l, "a")
	done := make(chan struct{})
	go func() { defer close(done); s.mu.Lock(); s.from.Lost(driver.CauseGone, nil); s.mu.Unlock() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("deadlock")
	}
}

func TestTryLockDoesNotOvertakeLocalWaitersOnAPolledStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		poll := func(g *driver.Guarantees) { g.Wake, g.Order = driver.WakePoll, driver.OrderNone }
		l := newLocker(t, altered(s, poll))
		k := mustLock(t, l, "a")
		got := make(chan time.Duration, 1)
		go func() { b := time.Now(); k := mustLock(t, l, "a"); got <- time.Since(b); _ = k.Unlock() }()
		time.Sleep(10 * time.Second)
		for range 1000 {
			unlock(t, k)
			var err error
			k, err = l.TryLock(bg, "a")
			if err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if k != nil {
			unlock(t, k)
			t.Error("1000 TryLocks of the same Locker overtook its waiter")
		}
		t.Logf("local waiter served after %s", <-got)
	})
}

// TestRetriesEndWhenNothingCanStand: an undo or a release that keeps failing ends when its
// lease or queue entry must have expired. A lease or entry that lives as long as a shared
// session never expires. Close then waits for a limited time, and reports what it could not
// confirm.
func TestRetriesEndWhenNothingCanStand(t *testing.T) {
	for _, c := range []struct {
		leftoversExpire bool
		tries           int // that fail
		unconfirmed     bool
		least, most     time.Duration
	}{
		{leftoversExpire: true, tries: 1 << 30, most: 10 * time.Second},
		{tries: 12, least: 6 * time.Second, most: 30 * time.Second},
		{tries: 100, unconfirmed: true, least: 30 * time.Second, most: 40 * time.Second},
	} {
		for _, what := range []string{"undo", "release"} {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				l := newLocker(t, altered(s, func(g *driver.Guarantees) { g.LeftoversExpire = c.leftoversExpire }))
				no := driver.Errorf(driver.CodeRefused, "no rights")
				if what == "undo" {
					s.Script().FailUndos("a", c.tries, no)
					s.Script().LoseAcquireAnswer("a", memstore.Dropped, 0)
					_, _ = l.TryLock(bg, "a", holdfast.TTL(time.Second))
				} else {
					k := mustLock(t, l, "a", holdfast.TTL(time.Second))
					s.Script().FailReleases("a", c.tries, no)
					_ = k.Unlock()
				}
				began := time.Now()
				err := l.Close(bg)
				took := time.Since(began)
				if errors.Is(err, holdfast.ErrUnavailable) != c.unconfirmed || (err == nil) == c.unconfirmed || took < c.least || took > c.most {
					t.Errorf("%s, %+v: Close: %v after %s", what, c, err, took)
				}
				time.Sleep(5 * time.Minute)
				if err := l.Close(bg); err != nil {
					t.Errorf("%s, %+v: Close when the store is back: %v", what, c, err)
				}
			})
		}
	}
}

// TestRetriesGetMoreTime: a release takes longer than the request timeout, as if the client must first connect to a busy
// server. The Locker completes it in the background.
func TestRetriesGetMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		long := altered(s, func(g *driver.Guarantees) { g.LeftoversExpire = false })
		long.OnRelease = func(ctx context.Context, g driver.Grant, keep time.Duration) error {
			if err := backoff.Sleep(ctx, time.Second); err != nil {
				return driver.Errorf(driver.CodeUnknown, "not in time: %w", err)
			}
			return s.Release(ctx, g, keep)
		}
		l := newLocker(t, long)
		k := mustLock(t, l, "a", holdfast.TTL(300*time.Millisecond))
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatalf("Unlock: %v", err)
		}
		must.Report(t, l.Close(bg))
	})
}

// TestRenewalWithAnEarlySendIsNotRepeatedAtOnce: a session store answers so. The validity counts from the heartbeat
// before the last one, which is more than a third of the TTL old.
func TestRenewalWithAnEarlySendIsNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var n atomic.Int64
		l := newLocker(t, &fake{Store: s, OnRenew: func(ctx context.Context, gs []driver.Grant) []driver.Renewal {
			a := s.Renew(ctx, gs)
			if n.Add(1) <= 5000 {
				a[0].SentAt = gs[0].SentAt
			}
			return a
		}})
		k := mustLock(t, l, "a", holdfast.TTL(30*time.Second))
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if n := n.Load(); n > 10 {
			t.Errorf("%d renewals within a millisecond", n)
		}
		unlock(t, k)
	})
}

// TestReleaseWithALostAnswerIsConfirmedLater: the release was applied, and its answer was lost.
// The Locker reports EventReleased when the retry finds nothing to release.
func TestReleaseWithALostAnswerIsConfirmedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		s := memstore.New()
		l := newLocker(t, &fake{Store: s, OnRelease: func(ctx context.Context, g driver.Grant, keep time.Duration) error {
			if err := s.Release(ctx, g, keep); err != nil {
				return err
			}
			return driver.Errorf(driver.CodeUnknown, "answer lost")
		}}, holdfast.WithHooks(r))
		_ = mustLock(t, l, "a").Unlock()
		time.Sleep(time.Minute)
		kinds := r.kinds()
		if last := kinds[len(kinds)-1]; last != holdfast.EventReleased {
			t.Errorf("%q", kinds)
		}
	})
}

// TestWaitContinuesAfterABusyAnswer: a store may answer that it cannot queue a waiter now. The wait
// continues, and ends with ErrBusy.
func TestWaitContinuesAfterABusyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, altered(s, network))
		s.Script().FailAcquire("a", 3, &driver.BusyError{})
		unlock(t, mustLock(t, l, "a"))
		s.Script().FailAcquire("a", 1<<30, driver.Errorf(driver.CodeBusy, "too many waiters"))
		if _, err := l.Lock(bg, "a", holdfast.Wait(time.Minute)); !errors.Is(err, holdfast.ErrBusy) {
			t.Error(err)
		}
		s.Script().Reset()
	})
}

// TestLockAllTriesFreeNamesAfterWait: the wait for the first name took the whole time. A
// free name is still acquired, and a held one is busy.
func TestLockAllTriesFreeNamesAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		slow := &fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Name == "a" {
				defer time.Sleep(2 * time.Second)
			}
			return s.Acquire(ctx, r)
		}}
		l, other := newLocker(t, slow), newLocker(t, s.Client())
		k, err := l.LockAll(bg, []string{"a", "b"}, holdfast.Wait(time.Second))
		must.Succeed(t, err)
		unlock(t, k)
		b := mustLock(t, other, "b")
		if _, err := l.LockAll(bg, []string{"a", "b"}, holdfast.Wait(time.Second)); !errors.Is(err, holdfast.ErrBusy) {
			t.Error(err)
		}
		wantFree(t, other, "a")
		unlock(t, b)
	})
}
