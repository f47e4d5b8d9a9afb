package holdfast

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestLossStopsTheHoldLimit: nothing runs on for a lock that was lost and whose
// Unlock is late.
func TestLossStopsTheHoldLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		k, err := l.Lock(context.Background(), "a", MaxHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Script().Lose("a", driver.Taken)
		<-k.Context().Done()
		synctest.Wait()
		if k.limit.Stop() {
			t.Error("the timer of MaxHold still ran")
		}
		_ = k.Unlock()
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestJoinAtTheLastUnlock: nobody joins a lock reentrantly whose last Unlock has begun
// to pass it on: it would release what the next goroutine holds.
func TestJoinAtTheLastUnlock(t *testing.T) {
	l, err := New(memstore.New(), LocalHandoff(4))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	k, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	h := k.hold
	heir := make(chan *Lock, 1)
	go func() {
		k, err := l.Lock(context.Background(), "a")
		if err != nil {
			t.Error(err)
		}
		heir <- k
	}()
	waits := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		q := l.queues["a"]
		return q != nil && q.head != nil && q.asking != nil
	}
	for !waits() {
		time.Sleep(time.Millisecond)
	}
	l.mu.Lock() // the way to the heir is barred
	go func() {
		if err := k.Unlock(); err != nil {
			t.Error(err)
		}
	}()
	leaving := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.locks) == 0
	}
	for !leaving() {
		time.Sleep(time.Millisecond)
	}
	joined, in := h.newLock(context.Background(), &h.set)
	l.mu.Unlock()
	if in || joined.Context().Err() == nil {
		t.Error("a lock that is being passed on was joined")
	}
	next := <-heir
	if next.Context().Err() != nil {
		t.Error(context.Cause(next.Context()))
	}
	if err := next.Unlock(); err != nil {
		t.Error(err)
	}
}

// failing says that names are held, and then fails each request that waits, until up.
type failing struct {
	driver.Store
	up    atomic.Bool
	asked chan struct{}
}

func (f *failing) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch {
	case f.up.Load():
		return f.Store.Acquire(ctx, r)
	case !r.Wait:
		return driver.Grant{}, &driver.BusyError{}
	}
	select {
	case f.asked <- struct{}{}:
	default:
	}
	return driver.Grant{}, driver.Errorf(driver.Unavailable, "it is down")
}

// TestNewcomerEndsThePause: who comes while a queue pauses after failures, for those who
// have time, is asked for within its own request timeout.
func TestNewcomerEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Store: memstore.New(), asked: make(chan struct{})}
		l, err := New(f)
		if err != nil {
			t.Fatal(err)
		}
		const ttl = 600 * time.Millisecond
		granted := make(chan time.Time, 2)
		lock := func() {
			k, err := l.Lock(context.Background(), "a", TTL(ttl))
			if err != nil {
				t.Error(err)
				return
			}
			granted <- time.Now()
			_ = k.Unlock()
		}
		go lock()
		synctest.Wait()
		time.Sleep(20 * time.Second) // the pauses have become long
		<-f.asked
		synctest.Wait()
		f.up.Store(true)
		came := time.Now()
		go lock()
		for range 2 {
			if d := (<-granted).Sub(came); d > ttl/3 {
				t.Errorf("granted after %s", d)
			}
		}
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
