package holdfast_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// wanted reports whether a channel of Wanted is closed when nothing else can happen at this moment.
func wanted(ch <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// TestWantedReportsAWaiter: a waiter of this process or of another one closes the channel at once, and nothing
// else does.
func TestWantedReportsAWaiter(t *testing.T) {
	for where, local := range map[string]bool{"this process": true, "another process": false} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				l := newLocker(t, s)
				other := l
				if !local {
					other = newLocker(t, s.Client())
				}
				k := mustLock(t, l, "a")
				ch := holdfast.Wanted(k.Context(), "a")
				if holdfast.Wanted(k.Context(), "b") != nil {
					t.Error("a channel for a name that the context does not hold")
				}
				wantBusy(t, other, "a")
				if time.Sleep(time.Minute); wanted(ch) {
					t.Fatal("wanted without a waiter")
				}
				wait := func(ctx context.Context) { // that the waiter is queued
					go func() {
						if k, err := other.Lock(ctx, "a"); err == nil {
							_ = k.Unlock()
						}
					}()
				}
				ctx, cancel := context.WithCancel(bg)
				wait(ctx)
				if !wanted(ch) || !wanted(k.Wanted()) {
					t.Error("a waiter, and the channel is open")
				}
				next := make(chan bool)
				go func() {
					k, err := other.Lock(bg, "a")
					must.Report(t, err)
					next <- wanted(k.Wanted())
					unlock(t, k)
				}()
				synctest.Wait()
				cancel() // the first waiter
				unlock(t, k)
				if <-next {
					t.Error("the last waiter holds the lock, and it is wanted")
				}
				k = mustLock(t, l, "a")
				ctx, cancel = context.WithCancel(bg)
				wait(ctx)
				synctest.Wait()
				if ch := k.Wanted(); !wanted(ch) {
					t.Error("a waiter was there before the call, and the channel is open")
				}
				cancel()
				unlock(t, k)
				k = mustLock(t, l, "a")
				if wanted(k.Wanted()) {
					t.Error("the next lock is wanted because the last one was")
				}
				unlock(t, k)
			})
		})
	}
}

// TestWantedOfLockAll: a waiter of any of the names counts.
func TestWantedOfLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k, err := l.LockAll(bg, []string{"a", "b"})
		must.Succeed(t, err)
		ch := k.Wanted()
		if wanted(ch) {
			t.Error("wanted without a waiter")
		}
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		go func() { _, _ = other.Lock(ctx, "a") }()
		if !wanted(ch) {
			t.Error("a waiter of the first name, and the channel is open")
		}
		unlock(t, k)
	})
}

// uninspectable hides that a store can be inspected, and that it notifies of changes.
type uninspectable struct{ driver.Store }

// TestWantedWithoutInspection: where the store shows no waiters, those of this process count, and the lock ends the
// watch.
func TestWantedWithoutInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, uninspectable{memstore.New()})
		k := mustLock(t, l, "a")
		ch := k.Wanted()
		if time.Sleep(time.Minute); wanted(ch) {
			t.Error("wanted without a waiter")
		}
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		go func() { _, _ = l.Lock(ctx, "a") }()
		if !wanted(ch) {
			t.Error("a waiter, and the channel is open")
		}
		unlock(t, k)
	})
}

// TestWantedOutlastsAnOutage: while the store does not answer, the channel stays open. Afterwards it reports the
// waiter that came meanwhile.
func TestWantedOutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		s := &fake{Store: memstore.New()}
		s.OnInspect = func(ctx context.Context, name string) (driver.State, error) {
			if down.Load() {
				return driver.State{}, driver.Errorf(driver.CodeUnavailable, "an outage")
			}
			return s.Store.Inspect(ctx, name)
		}
		l, other := newLocker(t, s), newLocker(t, s.Client())
		k := mustLock(t, l, "a")
		down.Store(true)
		ch := k.Wanted()
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		go func() { _, _ = other.Lock(ctx, "a") }()
		if time.Sleep(time.Minute); wanted(ch) {
			t.Error("wanted, and the store has not answered")
		}
		down.Store(false)
		if time.Sleep(10 * time.Second); !wanted(ch) {
			t.Error("the store answers again, and the channel is open")
		}
		cancel()
		unlock(t, k)
	})
}
