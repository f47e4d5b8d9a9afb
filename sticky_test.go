package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// counted counts the requests, the releases and the inspections of a store.
type counted struct {
	*fake
	acquires, releases, reads atomic.Int32
}

func newCounted() *counted {
	s := &counted{fake: &fake{Store: memstore.New()}}
	s.OnAcquire = s.request
	s.OnRelease = func(ctx context.Context, g driver.Grant, keep time.Duration) error {
		s.releases.Add(1)
		return s.Store.Release(ctx, g, keep)
	}
	s.OnInspect = func(ctx context.Context, name string) (driver.State, error) {
		s.reads.Add(1)
		return s.Store.Inspect(ctx, name)
	}
	return s
}

func (s *counted) request(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.acquires.Add(1)
	return s.Store.Acquire(ctx, r)
}

// wantCalls requires the numbers of requests and releases so far.
func (s *counted) wantCalls(t testing.TB, acquires, releases int32) {
	t.Helper()
	if a, r := s.acquires.Load(), s.releases.Load(); a != acquires || r != releases {
		t.Fatalf("%d requests and %d releases; want %d and %d", a, r, acquires, releases)
	}
}

// inMinute is the option of most locks here.
var inMinute = holdfast.Sticky(time.Minute)

// TestStickyLocksAgainWithoutARequest: after an Unlock the next Lock or TryLock of the Locker makes no request, and
// its token is larger. The name is held meanwhile, and free when the time is over. Each Unlock is reported once.
func TestStickyLocksAgainWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newCounted(), &recorder{}
		l, other := newLocker(t, s, holdfast.WithHooks(r)), newLocker(t, s.Client())
		var last uint64
		for i := range 40 {
			acquire := l.Lock
			if i%2 == 1 {
				acquire = l.TryLock
			}
			k, err := acquire(bg, "a", inMinute)
			must.Succeed(t, err)
			if k.Token() <= last {
				t.Fatalf("token %d after %d", k.Token(), last)
			}
			if left := k.Remaining(); left <= 0 {
				t.Fatalf("%s left", left)
			}
			last = k.Token()
			wantBusy(t, other, "a")
			time.Sleep(time.Duration(i) * time.Second) // renewed
			unlock(t, k)
			if k.Context().Err() == nil || context.Cause(k.Context()) != holdfast.ErrReleased {
				t.Fatal(context.Cause(k.Context()))
			}
			wantBusy(t, other, "a")
			time.Sleep(59 * time.Second) // the time starts again with each Unlock
		}
		s.wantCalls(t, 1, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s.wantCalls(t, 1, 1)
		wantFree(t, other, "a")
		k := mustLock(t, l, "a")
		if k.Token() <= last {
			t.Errorf("token %d after %d", k.Token(), last)
		}
		unlock(t, k)
		s.wantCalls(t, 2, 2)
		events := map[holdfast.EventKind]int{}
		for _, kind := range r.kinds() {
			events[kind]++
		}
		if events[holdfast.EventAcquired] != 41 || events[holdfast.EventReleased] != 41 || events[holdfast.EventLost] != 0 {
			t.Errorf("%v", events)
		}
	})
}

// TestStickyEndsWithTheTokens: a grant serves as many locks as it has tokens.
func TestStickyEndsWithTheTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s, holdfast.LocalHandoff(3), holdfast.Defaults(inMinute))
		for i := range int32(12) {
			unlock(t, mustLock(t, l, "a"))
			s.wantCalls(t, 1+i/4, (i+1)/4)
		}
	})
}

// TestStickyGivesWayToAWaiter: a waiter of another Locker gets a kept lock at once, and one that is locked, for the first
// time or again, with its next Unlock. So it does not wait for the end of the time. The lock is then not taken again.
func TestStickyGivesWayToAWaiter(t *testing.T) {
	for name, locks := range map[string]int{"locked": 1, "kept": 0, "locked again": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newCounted()
				l, other := newLocker(t, s), newLocker(t, s.Client())
				k := mustLock(t, l, "a", inMinute)
				if locks != 1 {
					unlock(t, k)
				}
				if locks == 2 {
					k = mustLock(t, l, "a", inMinute)
				}
				got := lockLater(t, other, bg)
				if locks > 0 {
					unlock(t, k)
					synctest.Wait()
				}
				select {
				case next := <-got:
					if next.Token() <= k.Token() {
						t.Errorf("token %d after %d", next.Token(), k.Token())
					}
					wantBusy(t, l, "a", inMinute)
					unlock(t, next)
				default:
					t.Fatal("the waiter of another Locker waits although the lock is not used")
				}
				s.wantCalls(t, 2, 1)
			})
		})
	}
}

// TestStickyServesOtherRequestsOfTheLocker: a request that the kept lock does not fit gets a grant of its own, also
// without waiting.
func TestStickyServesOtherRequestsOfTheLocker(t *testing.T) {
	for name, o := range map[string]holdfast.LockOption{
		"TTL": holdfast.TTL(time.Minute), "Shared": holdfast.Shared(), "Limit": holdfast.Limit(3),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newCounted()
				l := newLocker(t, s)
				for i, acquire := range []func(context.Context, string, ...holdfast.LockOption) (*holdfast.Lock, error){l.TryLock, l.Lock} {
					unlock(t, mustLock(t, l, "a", inMinute))
					k, err := acquire(bg, "a", o)
					must.Succeed(t, err)
					unlock(t, k)
					s.wantCalls(t, int32(2*i+2), int32(2*i+2))
				}
			})
		})
	}
}

// TestPlainLockTakesAStickyOne: a lock without the option takes the kept grant, and is released.
func TestPlainLockTakesAStickyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s)
		unlock(t, mustLock(t, l, "a", inMinute))
		unlock(t, mustLock(t, l, "a"))
		s.wantCalls(t, 1, 1)
	})
}

// TestLocalWaiterTakesAStickyLock: a request finds the name held, and it is kept before the request is in the queue.
func TestLocalWaiterTakesAStickyLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s)
		k := mustLock(t, l, "a", inMinute)
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := s.request(ctx, r)
			if s.Classify(err) == driver.CodeBusy {
				unlock(t, k)
			}
			return g, err
		}
		next := mustLock(t, l, "a", inMinute)
		s.wantCalls(t, 2, 0)
		if next.Token() <= k.Token() {
			t.Errorf("token %d after %d", next.Token(), k.Token())
		}
		unlock(t, next)

		// The same with a request that the lock does not fit.
		k = mustLock(t, l, "a", inMinute)
		next = mustLock(t, l, "a", holdfast.TTL(time.Minute), holdfast.Wait(time.Second))
		unlock(t, next)
	})
}

// TestStickyLockIsHandedToLocalWaiters: a goroutine that waits gets the lock with the Unlock before, also when the time
// for handoffs is over. Nothing is kept while it waits.
func TestStickyLockIsHandedToLocalWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s, holdfast.Defaults(inMinute))
		k := mustLock(t, l, "a")
		q := &queueUp{t: t}
		for range 5 {
			q.take("l", l, time.Second)
		}
		began := time.Now()
		unlock(t, k)
		if got, took := q.served(), time.Since(began); got != "lllll" || took >= 6*time.Second { // in fake time
			t.Errorf("%s, after %s: a goroutine waits for a lock that is kept", got, took)
		}
		n := s.acquires.Load()
		unlock(t, mustLock(t, l, "a"))
		s.wantCalls(t, n, s.releases.Load())
	})
}

// TestLocalWaiterRecallsNoStickyLock: the queue entry of a goroutine of the Locker is no recall. The lock that it gets in a
// handoff is kept.
func TestLocalWaiterRecallsNoStickyLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s, holdfast.Defaults(inMinute))
		unlock(t, mustLock(t, l, "a"))
		k := mustLock(t, l, "a")
		got := lockLater(t, l, bg)
		if st, err := s.Inspect(bg, "a"); err != nil || len(st.Waiters) != 1 {
			t.Fatalf("%v, %v", st, err)
		}
		unlock(t, k) // no time has passed since the grant
		unlock(t, <-got)
		synctest.Wait()
		n := s.acquires.Load()
		unlock(t, mustLock(t, l, "a"))
		s.wantCalls(t, n, 0)
	})
}

// TestStickyIsWatchedToItsRelease: the store is read once a second from the first Unlock to the release, and not
// before or after.
func TestStickyIsWatchedToItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s)
		k := mustLock(t, l, "a", inMinute)
		time.Sleep(10 * time.Second)
		wantReads := func(least, most int32) {
			t.Helper()
			synctest.Wait()
			if n := s.reads.Swap(0); n < least || n > most {
				t.Fatalf("%d reads, want %d to %d", n, least, most)
			}
		}
		wantReads(0, 0)
		unlock(t, k)
		time.Sleep(10 * time.Second)
		wantReads(10, 12)
		k = mustLock(t, l, "a") // it will not be kept
		time.Sleep(10 * time.Second)
		wantReads(9, 11)
		unlock(t, k)
		wantReads(0, 1)
		time.Sleep(10 * time.Second)
		wantReads(0, 0)
	})
}

// TestCloseReleasesStickyLocks: Close releases what is kept at once.
func TestCloseReleasesStickyLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newCounted(), &recorder{}
		l, err := holdfast.New(s, holdfast.WithHooks(r))
		must.Succeed(t, err)
		other := newLocker(t, s.Client())
		for _, name := range []string{"a", "b"} {
			unlock(t, mustLock(t, l, name, inMinute))
		}
		reported := len(r.kinds())
		began := time.Now()
		must.Succeed(t, l.Close(bg))
		if time.Since(began) != 0 {
			t.Error("Close has waited")
		}
		wantFree(t, other, "a")
		wantFree(t, other, "b")
		if got := r.kinds(); len(got) != reported {
			t.Errorf("reported at Close: %q", got[reported:])
		}
		if _, err := l.TryLock(bg, "a", inMinute); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestLostStickyLockIsNotTaken: a kept lock that the store has ended is not taken, and nothing reports a loss.
// One that is locked again is lost like any other.
func TestLostStickyLockIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newCounted(), &recorder{}
		l, other := newLocker(t, s, holdfast.WithHooks(r)), newLocker(t, s.Client())
		k := mustLock(t, l, "a", inMinute)
		unlock(t, k)
		must.Succeed(t, other.Break(bg, "a", k.Token()))
		synctest.Wait()
		between := mustLock(t, other, "a")
		unlock(t, between)
		next := mustLock(t, l, "a", inMinute)
		if next.Token() <= between.Token() {
			t.Errorf("token %d after %d", next.Token(), between.Token())
		}
		unlock(t, next)
		if slices.Contains(r.kinds(), holdfast.EventLost) {
			t.Errorf("%q", r.kinds())
		}

		next = mustLock(t, l, "a", inMinute)
		must.Succeed(t, other.Break(bg, "a", next.Token()))
		synctest.Wait()
		wantCause(t, next.Context(), holdfast.CauseTaken)
		if err := next.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		wantFree(t, other, "a")
	})
}

// TestStickyLockThatHasEndedUnheard: the store has ended a kept grant, and then granted a request of the Locker. The
// Locker has not heard of the end. The kept grant is not taken beside the other one.
func TestStickyLockThatHasEndedUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s)
		var k *holdfast.Lock
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if k != nil {
				unlock(t, k)
				must.Succeed(t, s.Break(bg, "a", k.Token()))
				k = nil
			}
			r.From = deaf{r.From} // The store does not notify of the end of a grant.
			return s.request(ctx, r)
		}
		k = mustLock(t, l, "a", inMinute)
		next, err := l.TryLock(bg, "a", inMinute)
		must.Succeed(t, err)
		wantBusy(t, l, "a", inMinute)
		unlock(t, next)
	})
}

type deaf struct{ driver.Requester }

func (deaf) Lost(driver.Cause, error) {}

// TestStickyEndsWithItsWatch: if the store cannot be read, nothing would recall the lock. It is released: at once
// if the store refuses, and else when the time has passed since the first failure, also if it is
// locked again and again.
func TestStickyEndsWithItsWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		code driver.Code
		kept bool
	}{"refused": {driver.CodeRefused, false}, "unavailable": {driver.CodeUnavailable, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newCounted()
				l, other := newLocker(t, s), newLocker(t, s.Client())
				s.OnInspect = func(context.Context, string) (driver.State, error) {
					return driver.State{}, driver.Errorf(tc.code, "no")
				}
				unlock(t, mustLock(t, l, "a", inMinute))
				synctest.Wait()
				if tc.kept {
					for range 10 {
						wantBusy(t, other, "a")
						time.Sleep(7 * time.Second)
						unlock(t, mustLock(t, l, "a", inMinute))
						synctest.Wait()
					}
					s.wantCalls(t, 2, 1)
					return
				}
				wantFree(t, other, "a")
				s.wantCalls(t, 1, 1)
			})
		})
	}
}

// TestFailedReleaseOfAStickyLockIsReported: the release of a kept lock is reported only if it fails, and then its
// end, too.
func TestFailedReleaseOfAStickyLockIsReported(t *testing.T) {
	for name, end := range map[string]func(*holdfast.Locker) error{
		"the time is over": func(*holdfast.Locker) error { time.Sleep(time.Minute); return nil },
		"Close":            func(l *holdfast.Locker) error { return l.Close(bg) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r := newCounted(), &recorder{}
				l, other := newLocker(t, s, holdfast.WithHooks(r)), newLocker(t, s.Client())
				unlock(t, mustLock(t, l, "a", inMinute, holdfast.TTL(time.Hour)))
				s.Script().FailReleases("a", 1<<30, driver.Errorf(driver.CodeUnavailable, "no"))
				time.AfterFunc(time.Minute+time.Second, s.Script().Reset)
				must.Succeed(t, end(l))
				time.Sleep(10 * time.Second)
				synctest.Wait()
				got := r.kinds()
				if len(got) < 5 || got[2] != holdfast.EventReleased || got[3] != holdfast.EventUnconfirmed || got[len(got)-1] != holdfast.EventReleased {
					t.Errorf("%q", got)
				}
				wantFree(t, other, "a")
			})
		})
	}
}

// TestStickyOfReentrantLocks: the last Unlock of all Locks keeps the grant.
func TestStickyOfReentrantLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s, holdfast.Defaults(inMinute))
		for range 3 {
			outer := mustLock(t, l, "a")
			inner, err := l.Lock(outer.Context(), "a", holdfast.Reentrant())
			must.Succeed(t, err)
			unlock(t, outer)
			wantBusy(t, l, "a")
			unlock(t, inner)
		}
		// The three requests of wantBusy reached the store.
		s.wantCalls(t, 4, 0)
		all, err := l.LockAll(bg, []string{"a", "b"})
		must.Succeed(t, err)
		unlock(t, all)
		all, err = l.LockAll(bg, []string{"a", "b"})
		must.Succeed(t, err)
		unlock(t, all)
		s.wantCalls(t, 5, 0)
	})
}

// TestCancelledCallerTakesNoStickyLock: a caller whose context has ended leaves the kept lock to the next.
func TestCancelledCallerTakesNoStickyLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l := newLocker(t, s, holdfast.Defaults(inMinute))
		unlock(t, mustLock(t, l, "a"))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		unlock(t, mustLock(t, l, "a"))
		s.wantCalls(t, 1, 0)
	})
}

// TestReleaseOfAStickyLockDelaysNoCaller: the store does not answer the release of a kept lock that does not fit a request.
// The request ends with its context and its Wait.
func TestReleaseOfAStickyLockDelaysNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{}, 100) // receives when a release has begun
		s := &fake{Store: memstore.New(), OnRelease: func(ctx context.Context, _ driver.Grant, _ time.Duration) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}}
		l := newLocker(t, s, holdfast.RequestTimeout(time.Minute))
		for i, acquire := range []func(context.Context, string) error{
			func(ctx context.Context, name string) error {
				_, err := l.Lock(ctx, name, holdfast.TTL(time.Hour))
				return err
			},
			func(ctx context.Context, name string) error {
				_, err := l.TryLock(ctx, name, holdfast.TTL(time.Hour))
				return err
			},
			func(_ context.Context, name string) error {
				_, err := l.Lock(bg, name, holdfast.TTL(time.Hour), holdfast.Wait(time.Second))
				return err
			},
		} {
			name := string(rune('a' + i))
			unlock(t, mustLock(t, l, name, inMinute))
			ctx, cancel := context.WithTimeout(bg, time.Second)
			began := time.Now()
			err := acquire(ctx, name)
			cancel()
			if took := time.Since(began); err == nil || took > time.Second {
				t.Errorf("call %d returned after %s: %v", i, took, err)
			}
			<-begun
		}
	})
}

// TestStickyOfOneLockIsSwitchedOff: an option of a Locker can be excepted.
func TestStickyOfOneLockIsSwitchedOff(t *testing.T) {
	s := newCounted()
	l := newLocker(t, s, holdfast.Defaults(inMinute))
	unlock(t, mustLock(t, l, "a", holdfast.Sticky(0)))
	unlock(t, mustLock(t, l, "b", holdfast.Sticky(0), holdfast.Shared()))
	s.wantCalls(t, 2, 2)
}

// TestStickyLocksAreReleasedForAConnection: a request that waits for something in this process gets what kept locks
// have. Nothing is kept while it waits.
func TestStickyLocksAreReleasedForAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		name, free := "full", make(chan struct{}) // requests for the name wait in the process
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			select {
			case <-free:
				return s.request(ctx, r)
			default:
			}
			full := driver.Errorf(driver.CodeUnavailable, "no connection")
			switch {
			case r.Name != name:
				return s.request(ctx, r)
			case r.First:
				return driver.Grant{}, full
			}
			if r.From.(driver.Delayer).Delayed(full); !r.Wait {
				return driver.Grant{}, full
			}
			<-free
			return s.request(ctx, r)
		}
		l := newLocker(t, s, holdfast.Defaults(inMinute))
		unlock(t, mustLock(t, l, "a"))
		got := make(chan *holdfast.Lock, 1)
		go func() { got <- mustLock(t, l, "full") }()
		synctest.Wait()
		s.wantCalls(t, 1, 1)
		unlock(t, mustLock(t, l, "a"))
		s.wantCalls(t, 2, 2)
		close(free)
		unlock(t, <-got)
		unlock(t, mustLock(t, l, "full"))
		s.wantCalls(t, 3, 2)
		name, free = "other", make(chan struct{})
		if _, err := l.TryLock(bg, "other"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("TryLock: %v", err)
		}
		synctest.Wait()
		s.wantCalls(t, 3, 3)
	})
}

// TestLeaderAndTicksAreNotSticky: the lock of an election or a tick is free when it ends.
func TestLeaderAndTicksAreNotSticky(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCounted()
		l, other := newLocker(t, s, holdfast.Defaults(inMinute)), newLocker(t, s.Client())
		must.Succeed(t, l.Lead(bg, "a", func(context.Context) error { return nil }, inMinute))
		wantFree(t, other, "a")
		for _, err := range l.Every(bg, "b", holdfast.Period(time.Hour)) {
			must.Succeed(t, err)
			break
		}
		for st, err := range other.List(bg, "") {
			must.Succeed(t, err)
			for _, h := range st.Holders {
				if h.Tokens > 1 {
					t.Errorf("%s: the lock of a tick has %d tokens", st.Name, h.Tokens)
				}
			}
		}
	})
}

// TestStickyIsRefusedWhereNothingRecalls: a store without reserved tokens or without a view of the waiters, and a
// Locker without handoffs, cannot keep a lock. The store gets no request.
func TestStickyIsRefusedWhereNothingRecalls(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*driver.Guarantees)
		o      []holdfast.Option
	}{
		"no reserved tokens": {func(g *driver.Guarantees) { g.Reserves = false }, []holdfast.Option{holdfast.LocalHandoff(8)}},
		"no waiters shown":   {func(g *driver.Guarantees) { g.Visible = driver.VisibleHolders }, nil},
		"no queue entries":   {func(g *driver.Guarantees) { g.Wake = driver.WakePoll }, nil},
		"no handoffs":        {func(*driver.Guarantees) {}, []holdfast.Option{holdfast.LocalHandoff(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := noRequests(t)
			s.Edit = tc.change
			l := newLocker(t, s, tc.o...)
			for _, err := range []error{second(l.Lock(bg, "a", inMinute)), second(l.TryLock(bg, "a", inMinute))} {
				if !errors.Is(err, holdfast.ErrUnsupported) {
					t.Error(err)
				}
			}
		})
	}
}
