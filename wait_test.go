package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestEndedWaitReturnsTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s, holdfast.Process("here", "one")), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.Reason("nightly"))
		for name, wait := range map[string]func() error{
			"Wait": func() error { _, err := other.Lock(bg, "a", holdfast.Wait(time.Second)); return err },
			"deadline": func() error {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				_, err := other.Lock(ctx, "a")
				return err
			},
		} {
			began := time.Now()
			err := wait()
			var busy *holdfast.BusyError
			if !errors.As(err, &busy) || !errors.Is(err, holdfast.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("%s: %v after %s", name, err, time.Since(began))
				continue
			}
			if len(busy.Holders) != 1 || busy.Holders[0].Reason != "nightly" || busy.Holders[0].Host != "here" || busy.Holders[0].Token != k.Token() {
				t.Errorf("%s: holders %+v", name, busy.Holders)
			}
		}
		ctx, cancel := context.WithCancelCause(bg)
		why := errors.New("changed my mind")
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err := other.Lock(ctx, "a")
		if errors.Is(err, holdfast.ErrBusy) || !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("cancelled: %v", err)
		}
		if busy, ok := errors.AsType[*holdfast.BusyError](err); !ok || len(busy.Holders) != 1 {
			t.Errorf("cancelled: the holder is not in %v", err)
		}
		if _, err := other.Lock(ctx, "b"); !errors.Is(err, context.Canceled) || errors.Is(err, holdfast.ErrBusy) {
			t.Errorf("cancelled before: %v", err)
		}
		synctest.Wait() // its queue entry is withdrawn in the background
		if st, _ := l.Inspect(bg, "a"); len(st.Waiters) != 0 {
			t.Errorf("left waiting: %+v", st.Waiters)
		}
		unlock(t, k)
	})
}

// TestLocalWaitersAreServedInOrder: local waiters are served in order, and have one queue entry
// at the store.
func TestLocalWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k := mustLock(t, other, "a")
		var served []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				lock := mustLock(t, l, "a", holdfast.Reason(string(rune('A'+i))))
				served = append(served, i)
				unlock(t, lock)
			})
			synctest.Wait()
		}
		if st, _ := other.Inspect(bg, "a"); len(st.Waiters) != 1 {
			t.Errorf("%d queue entries at the store, want 1", len(st.Waiters))
		}
		unlock(t, k)
		wg.Wait()
		if !slices.IsSorted(served) || len(served) != 20 {
			t.Errorf("served %v", served)
		}
	})
}

// TestQueueEntryOutlivesItsHead: the first waiter is cancelled. The next waiter of the same Locker
// inherits its queue entry, and so is served before the waiter of the other Locker. The store then shows its reason.
func TestQueueEntryOutlivesItsHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		holder, l, rival := newLocker(t, s), newLocker(t, s.Client()), newLocker(t, s.Client())
		k := mustLock(t, holder, "a")
		var order []string // the reasons of the holders
		var wg sync.WaitGroup
		wait := func(l *holdfast.Locker, ctx context.Context, reason string, o ...holdfast.LockOption) {
			wg.Go(func() {
				lock, err := l.Lock(ctx, "a", append(o, holdfast.Reason(reason))...)
				if err != nil {
					return
				}
				st, err := holder.Inspect(bg, "a")
				if err != nil || len(st.Holders) != 1 || lock.Context().Err() != nil {
					t.Errorf("%+v, %v, %v", st, err, context.Cause(lock.Context()))
				}
				order = append(order, st.Holders[0].Reason)
				unlock(t, lock)
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(bg)
		wait(l, ctx, "cancelled")
		wait(rival, bg, "rival")
		wait(l, bg, "next")
		cancel()
		synctest.Wait()
		unlock(t, k)
		wg.Wait()
		if !slices.Equal(order, []string{"next", "rival"}) {
			t.Errorf("served %v", order)
		}

		// A waiter with other options cannot inherit the entry.
		k, order = mustLock(t, holder, "a"), nil
		ctx, cancel = context.WithCancel(bg)
		wait(l, ctx, "cancelled")
		wait(rival, bg, "rival")
		wait(l, bg, "reader", holdfast.Shared())
		cancel()
		synctest.Wait()
		unlock(t, k)
		wg.Wait()
		if !slices.Equal(order, []string{"rival", "reader"}) {
			t.Errorf("served %v", order)
		}
	})
}

// TestUnknownOutcomeIsRolledBack: the answer to a request is lost. Whatever its outcome, the
// name is free soon after that, not only after the TTL. A caller that waits repeats the request,
// which is granted after the rollback of the first one.
func TestUnknownOutcomeIsRolledBack(t *testing.T) {
	for _, outcome := range []memstore.Outcome{memstore.Applied, memstore.Dropped, memstore.Late} {
		for _, waits := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				script := s.Script()
				l, other := newLocker(t, s), newLocker(t, s.Client())
				script.LoseAcquireAnswer("a", outcome, time.Minute)
				script.FailUndos("a", 3, driver.Errorf(driver.CodeUnavailable, "down"))
				began := time.Now()
				if waits {
					k, err := l.Lock(bg, "a")
					must.Succeed(t, err)
					unlock(t, k)
				} else if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
					t.Fatalf("TryLock: %v", err)
				}
				k, err := other.Lock(bg, "a")
				must.Succeed(t, err)
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("outcome %d: free after %s", outcome, took)
				}
				time.Sleep(2 * time.Minute) // a late grant must not appear now
				st, err := other.Inspect(bg, "a")
				if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != k.Token() {
					t.Errorf("%+v, %v", st, err)
				}
				unlock(t, k)
				time.Sleep(2 * time.Minute)
				if st, _ := other.Inspect(bg, "a"); len(st.Holders)+len(st.Waiters) != 0 {
					t.Errorf("outcome %d: appeared late: %+v", outcome, st)
				}
			})
		}
	}
}

// TestQueuedWaiterOutlastsFailedRequests: the store has answered that the name is held, so
// the waiter continues until its context ends.
func TestQueuedWaiterOutlastsFailedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		polled := altered(s.Client(), func(g *driver.Guarantees) { g.Wake = driver.WakePoll; g.Scope = driver.ScopeNetwork })
		holder, l := newLocker(t, s), newLocker(t, polled)
		k := mustLock(t, holder, "a")
		got := make(chan error, 1)
		go func() {
			k, err := l.Lock(bg, "a")
			if err == nil {
				err = k.Unlock()
			}
			got <- err
		}()
		time.Sleep(time.Second)
		s.Script().FailAcquire("a", 10, driver.Errorf(driver.CodeUnavailable, "down"))
		s.Script().FailAcquire("a", 10, driver.Errorf(driver.CodeUnknown, "cut"))
		time.Sleep(time.Minute)
		unlock(t, k)
		must.Report(t, <-got)

		// A wait with a timeout ends with ErrBusy, although the store has become unavailable. Its text has the
		// store's error.
		k = mustLock(t, holder, "a")
		go func() {
			_, err := l.Lock(bg, "a", holdfast.Wait(time.Minute))
			got <- err
		}()
		time.Sleep(time.Second)
		s.Script().FailAcquire("a", 1<<30, driver.Errorf(driver.CodeUnavailable, "down"))
		if err := <-got; !errors.Is(err, holdfast.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "while the store failed: down") {
			t.Error(err)
		}

		// An answer after a failure ends the outage.
		s.Script().Reset()
		go func() {
			_, err := l.Lock(bg, "a", holdfast.Wait(time.Minute))
			got <- err
		}()
		time.Sleep(time.Second)
		s.Script().FailAcquire("a", 1, driver.Errorf(driver.CodeUnavailable, "down"))
		if err := <-got; !errors.Is(err, holdfast.ErrBusy) || strings.Contains(err.Error(), "down") {
			t.Error(err)
		}
		unlock(t, k)
	})
}

// TestDelayedWaiterIsNotBusy: requests wait for a connection of the process, for longer than the request timeout. A
// wait that ends then reports that, also of a waiter that came later, and not a busy lock. A wait without a limit
// goes on, and gets the lock when there is a connection. After that a wait can find the name held.
func TestDelayedWaiterIsNotBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := driver.Errorf(driver.CodeUnavailable, "no connection")
		s, free := memstore.New(), make(chan struct{})
		l := newLocker(t, &fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.First {
				return driver.Grant{}, full
			}
			if r.Wait {
				r.From.(driver.Delayer).Delayed(full)
			}
			select {
			case <-free:
				return s.Acquire(ctx, r)
			case <-ctx.Done():
				return driver.Grant{}, full
			}
		}})
		got := lockLater(t, l, bg)
		for range 2 {
			_, err := l.Lock(bg, "a", holdfast.Wait(time.Minute))
			if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrBusy) || !errors.Is(err, full) || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) || !errors.Is(err, full) {
			t.Error(err)
		}
		close(free)
		k := <-got
		if _, err := l.Lock(bg, "a", holdfast.Wait(time.Minute)); !errors.Is(err, holdfast.ErrBusy) || errors.Is(err, full) {
			t.Error(err)
		}
		unlock(t, k)
	})
}

// TestWaitersOfASilentStoreTimeOut: the first request gets no answer. Every waiting
// goroutine gets ErrUnavailable after the request timeout.
func TestWaitersOfASilentStoreTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		for name, store := range map[string]driver.Store{
			"push":    altered(s.Client(), network),
			"poll":    altered(s.Client(), func(g *driver.Guarantees) { g.Scope = driver.ScopeNetwork; g.Wake = driver.WakePoll }),
			"process": s.Client(),
		} {
			l := newLocker(t, store, holdfast.RequestTimeout(2*time.Second))
			if _, err := l.Guarantees(bg); err != nil {
				t.Fatal(err)
			}
			s.Script().Stop()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					began := time.Now()
					_, err := l.Lock(bg, "a")
					if took := time.Since(began); !errors.Is(err, holdfast.ErrUnavailable) || took > 5*time.Second {
						t.Errorf("%s: %v after %s", name, err, took)
					}
				})
			}
			wg.Wait()
			began := time.Now()
			if _, err := l.TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(began) != 2*time.Second {
				t.Errorf("%s: TryLock: %v after %s", name, err, time.Since(began))
			}
			s.Script().Start()
			unlock(t, mustLock(t, l, "a"))

			s.Script().FailAcquire("a", 1<<30, driver.Errorf(driver.CodeUnavailable, "connection refused"))
			if _, err := l.Lock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
			s.Script().Reset()
			s.Script().FailAcquire("a", 1, driver.Errorf(driver.CodeUnavailable, "connection refused"))
			if name != "process" { // Lock retries at a network store, so its caller does not see the failure
				unlock(t, mustLock(t, l, "a"))
			}
			s.Script().Reset()
		}
	})
}

// TestWaiterRetriesTheGuarantees: a waiter requests the guarantees again if the store was
// unavailable at the first request. It does so until the request timeout or the end of its wait.
func TestWaiterRetriesTheGuarantees(t *testing.T) {
	locker := func(t *testing.T, failures int64, code driver.Code) *holdfast.Locker {
		return newLocker(t, &fake{Store: memstore.New(), Guaranteed: func(context.Context) error {
			if failures--; failures < 0 {
				return nil
			}
			return driver.Errorf(code, "connection refused")
		}}, holdfast.RequestTimeout(2*time.Second))
	}
	const always = 1 << 40
	synctest.Test(t, func(t *testing.T) {
		unlock(t, mustLock(t, locker(t, 3, driver.CodeUnavailable), "a"))

		began := time.Now()
		if _, err := locker(t, 1, driver.CodeUnavailable).TryLock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(began) != 0 {
			t.Errorf("TryLock: %v after %s", err, time.Since(began))
		}
		if _, err := locker(t, 1, driver.CodeRefused).Lock(bg, "a"); !errors.Is(err, holdfast.ErrRefused) || time.Since(began) != 0 {
			t.Errorf("refused: %v after %s", err, time.Since(began))
		}
		if _, err := locker(t, always, driver.CodeUnavailable).Lock(bg, "a"); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(began) != 2*time.Second {
			t.Errorf("the request timeout: %v after %s", err, time.Since(began))
		}
		began = time.Now()
		if _, err := locker(t, always, driver.CodeUnavailable).Lock(bg, "a", holdfast.Wait(time.Second)); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(began) != time.Second {
			t.Errorf("Wait: %v after %s", err, time.Since(began))
		}
		began = time.Now()
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if _, err := locker(t, always, driver.CodeUnavailable).Lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("the context: %v after %s", err, time.Since(began))
		}
		l := locker(t, always, driver.CodeUnavailable)
		began = time.Now()
		time.AfterFunc(time.Second, func() { _ = l.Close(bg) })
		if _, err := l.Lock(bg, "a"); !errors.Is(err, holdfast.ErrClosed) || time.Since(began) != time.Second {
			t.Errorf("Close: %v after %s", err, time.Since(began))
		}
	})
}

func TestFinalAnswersAreReturnedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		for code, want := range map[driver.Code]error{driver.CodeRefused: holdfast.ErrRefused, driver.CodeUnsupported: holdfast.ErrUnsupported, driver.CodeInvalid: holdfast.ErrInvalid, driver.CodeClosed: holdfast.ErrClosed} {
			for _, scope := range []driver.Scope{driver.ScopeProcess, driver.ScopeNetwork} {
				l := newLocker(t, altered(s.Client(), func(g *driver.Guarantees) { g.Scope = scope }))
				s.Script().FailAcquire("a", 1, driver.Errorf(code, "no rights"))
				began := time.Now()
				if _, err := l.Lock(bg, "a"); !errors.Is(err, want) || time.Since(began) != 0 {
					t.Errorf("%v: %v after %s", code, err, time.Since(began))
				}
			}
		}
	})
}

// TestUnlockReturnsWithinTheRequestTimeout: the release is not answered. It continues in the
// background, and Close waits for it.
func TestUnlockReturnsWithinTheRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(30*time.Second))
		s.Script().Stop()
		began := time.Now()
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Unlock took %s", took)
		}
		if k.Context().Err() == nil {
			t.Error("the context has not ended after Unlock")
		}
		time.AfterFunc(4*time.Second, s.Script().Start)
		if err := l.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("closed after %s", took)
		}
		wantFree(t, other, "a")

		// After the lease has certainly expired, the client does not retry the release.
		l2, err := holdfast.New(s.Client())
		must.Succeed(t, err)
		k = mustLock(t, l2, "a", holdfast.TTL(3*time.Second))
		s.Script().FailReleases("a", 1<<30, driver.Errorf(driver.CodeUnavailable, "down"))
		_ = k.Unlock()
		if err := l2.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		s.Script().Reset()
	})
}

func wantFree(t testing.TB, l *holdfast.Locker, name string) {
	t.Helper()
	k, err := l.TryLock(bg, name)
	if err != nil {
		t.Fatalf("not free: %v", err)
	}
	unlock(t, k)
}

func TestCloseEndsLocksAndWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		other := newLocker(t, s.Client())
		l, err := holdfast.New(s)
		must.Succeed(t, err)
		k := mustLock(t, l, "a")
		foreign := mustLock(t, other, "b")
		got := make(chan error, 2)
		for range 2 {
			go func() { _, err := l.Lock(bg, "b"); got <- err }()
		}
		synctest.Wait()
		must.Report(t, l.Close(bg))
		wantCause(t, k.Context(), holdfast.CauseClosed)
		for range 2 {
			if err := <-got; !errors.Is(err, holdfast.ErrClosed) {
				t.Errorf("waiting: %v", err)
			}
		}
		wantFree(t, other, "a")
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		for _, err := range []error{
			second(l.Lock(bg, "a")), second(l.TryLock(bg, "a")), l.Do(bg, "a", nil), l.DoAll(bg, []string{"a"}, nil),
			second(l.TryLock(bg, "b")), second(l.TryDo(bg, "b", nil)), // held
		} {
			if !errors.Is(err, holdfast.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if err := l.Close(bg); err != nil {
			t.Errorf("closing twice: %v", err)
		}
		unlock(t, foreign)

		// Close returns when its context ends, although a release is unconfirmed.
		l, _ = holdfast.New(s.Client())
		mustLock(t, l, "a", holdfast.TTL(time.Hour))
		s.Script().Stop()
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("Close: %v", err)
		}
		s.Script().Start()
		if err := l.Close(bg); err != nil {
			t.Errorf("Close with more time: %v", err)
		}
		wantFree(t, other, "a")
	})
}

func second[T any](_ T, err error) error { return err }

// TestCancelledWaitersLeaveNothing: 10,000 waiters of several Lockers are cancelled at
// random moments while the lock changes hands. No goroutine and no queue entry remains.
func TestCancelledWaitersLeaveNothing(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	s := memstore.New()
	var lockers []*holdfast.Locker
	for range 4 {
		// A grant that is never released would stand forever.
		l, err := holdfast.New(s.Client(), holdfast.Defaults(holdfast.TTL(holdfast.MaxTTL)))
		must.Succeed(t, err)
		lockers = append(lockers, l)
	}
	names := []string{"a", "b", "c"}
	var inside [3]atomic.Int32 // holders of exclusive locks
	var n [3]int               // for the race detector
	var wg sync.WaitGroup
	for i := range 10_000 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(bg, rand.N(200*time.Millisecond))
			defer cancel()
			limit, name := rand.N(3), i%len(names)
			o := [][]holdfast.LockOption{nil, {holdfast.Shared()}, {holdfast.Limit(3)}}[limit]
			k, err := lockers[i%len(lockers)].Lock(ctx, names[name], o...)
			if err == nil {
				if limit == 0 {
					if n[name]++; inside[name].Add(1) != 1 {
						t.Error("two callers hold an exclusive lock")
					}
					inside[name].Add(-1)
				}
				unlock(t, k)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, name := range names { // a late grant is released in the background
		unlock(t, mustLock(t, lockers[0], name, holdfast.Wait(20*time.Second)))
	}
	for _, l := range lockers {
		must.Report(t, l.Close(bg))
	}
	for st := range newLocker(t, s).List(bg, "") {
		t.Errorf("left: %+v", st)
	}
	goleak.VerifyNone(t, ignore)
}

// TestPositionOfAFailedRequestIsUndone: a store keeps a position for a request that was repeated. When a later repetition
// fails, the core undoes the request, so that its position keeps no other client out.
func TestPositionOfAFailedRequestIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		longest := func(g *driver.Guarantees) { g.Wake, g.Order = driver.WakePoll, driver.OrderLongest }
		s := altered(m.Client(), longest)
		failed, undone := "", []string(nil) // the IDs of requests
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Waited > 0 && failed == "" {
				failed = r.ID
				return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "down")
			}
			return s.Store.Acquire(ctx, r)
		}
		s.OnUndo = func(ctx context.Context, r driver.Request) error {
			undone = append(undone, r.ID)
			return s.Store.Undo(ctx, r)
		}
		holder, l := newLocker(t, m), newLocker(t, s)
		k := mustLock(t, holder, "a")
		time.AfterFunc(10*time.Second, func() { _ = k.Unlock() })
		unlock(t, mustLock(t, l, "a"))
		must.Succeed(t, l.Close(bg))
		if failed == "" || !slices.Contains(undone, failed) {
			t.Errorf("undone: %q, want %q among them", undone, failed)
		}
	})
}

// TestFastPathIsSkippedAfterContention: a free lock on a server takes one request on the
// caller's goroutine. After a request found the name held, the next few callers queue at
// once.
func TestFastPathIsSkippedAfterContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		s := altered(m, func(g *driver.Guarantees) { g.Scope, g.TryFirst = driver.ScopeNetwork, true })
		var waits []bool // the field Wait of each request
		s.OnAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			waits = append(waits, r.Wait)
			return m.Acquire(ctx, r)
		}
		take := func() []bool {
			w := waits
			waits = nil
			return w
		}
		l, other := newLocker(t, s), newLocker(t, m)
		for range 3 {
			unlock(t, mustLock(t, l, "a"))
		}
		if got, want := take(), []bool{false, false, false}; !slices.Equal(got, want) {
			t.Errorf("free: waits %v, want %v", got, want)
		}
		k := mustLock(t, other, "a")
		done := lockLater(t, l, bg)
		if got, want := take(), []bool{false, true}; !slices.Equal(got, want) {
			t.Errorf("held: waits %v, want %v", got, want)
		}
		unlock(t, k)
		unlock(t, <-done)
		const skipped = 32
		for range skipped + 2 {
			synctest.Wait() // the queue has ended
			unlock(t, mustLock(t, l, "a"))
		}
		got := take()
		if want := append(slices.Repeat([]bool{true}, skipped), false, false); !slices.Equal(got, want) {
			t.Errorf("free again: waits %v, want %v", got, want)
		}
	})
}
