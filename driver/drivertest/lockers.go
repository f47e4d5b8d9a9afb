package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// locker makes a Locker with its own client.
func (e *env) locker(o ...holdfast.Option) *holdfast.Locker {
	e.Helper()
	l, err := holdfast.New(e.open(), o...)
	if err != nil {
		e.Fatal(err)
	}
	return l
}

func (e *env) closeLocker(l *holdfast.Locker) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), e.timeout())
	defer cancel()
	if err := l.Close(ctx); err != nil {
		e.Errorf("closing a Locker: %v", err)
	}
}

// contend runs work on several goroutines of several Lockers. A busy machine may be slow to answer a
// request, so the Lockers wait for as long as the TTL allows.
func (e *env) contend(lockers, goroutines, rounds int, work func(*holdfast.Locker)) {
	var wg sync.WaitGroup
	for range lockers {
		l := e.locker(holdfast.RequestTimeout(e.timeout()))
		var own sync.WaitGroup
		for range goroutines {
			own.Go(func() {
				for range rounds {
					work(l)
				}
			})
		}
		wg.Go(func() {
			own.Wait()
			e.closeLocker(l)
		})
	}
	wg.Wait()
}

// lockersExclude requires that an unprotected counter is exact, and that tokens rise in the
// order of the grants.
func lockersExclude(e *env) {
	const lockers, goroutines, rounds = 4, 4, 15
	name := e.name()
	var inside atomic.Int32
	sum, last := 0, uint64(0)
	e.contend(lockers, goroutines, rounds, func(l *holdfast.Locker) {
		err := l.Do(e.Context(), name, func(ctx context.Context) error {
			if inside.Add(1) != 1 {
				e.Error("two holders have the lock together")
			}
			defer inside.Add(-1)
			token := holdfast.Token(ctx, name)
			if token <= last {
				e.Errorf("token %d after %d", token, last)
			}
			last = token
			sum++
			return nil
		})
		if err != nil {
			e.Errorf("Do: %v", err)
		}
	})
	if want := lockers * goroutines * rounds; sum != want {
		e.Errorf("the counter is %d, want %d", sum, want)
	}
	e.free(e.open(), name)
}

func lockersShare(e *env) {
	if !e.g.Shared || !e.g.Mixed {
		e.Skip("the store has no shared locks beside exclusive ones")
	}
	name := e.name()
	var readers, writers atomic.Int32
	e.contend(3, 4, 10, func(l *holdfast.Locker) {
		var err error
		if rand.N(4) == 0 {
			err = l.Do(e.Context(), name, func(context.Context) error {
				if writers.Add(1) != 1 || readers.Load() != 0 {
					e.Error("a writer is not alone")
				}
				writers.Add(-1)
				return nil
			})
		} else {
			err = l.Do(e.Context(), name, func(context.Context) error {
				readers.Add(1)
				if writers.Load() != 0 {
					e.Error("a reader beside a writer")
				}
				readers.Add(-1)
				return nil
			}, holdfast.Shared())
		}
		if err != nil {
			e.Errorf("Do: %v", err)
		}
	})
	e.free(e.open(), name)
}

func lockersCount(e *env) {
	if !e.g.Semaphore {
		e.Skip("the store has no semaphores")
	}
	const n = 3
	name := e.name()
	var inside atomic.Int32
	var used [n]atomic.Int32
	e.contend(3, 4, 10, func(l *holdfast.Locker) {
		k, err := l.Lock(e.Context(), name, holdfast.Limit(n))
		if err != nil {
			e.Errorf("Lock: %v", err)
			return
		}
		if inside.Add(1) > n {
			e.Errorf("more than %d hold the semaphore", n)
		}
		if e.g.Slots && used[k.Slot()].Add(1) != 1 {
			e.Errorf("slot %d is used twice", k.Slot())
		}
		if e.g.Slots {
			used[k.Slot()].Add(-1)
		}
		inside.Add(-1)
		if err := k.Unlock(); err != nil {
			e.Errorf("Unlock: %v", err)
		}
	})
	e.free(e.open(), name)
}

// lockersHold requires that a lock is renewed, and held beyond several TTLs.
func lockersHold(e *env) {
	l, other := e.locker(), e.locker()
	if !e.longer(func(ttl time.Duration) bool { return e.holds(l, other, ttl) }) {
		e.Error("every lock expired although it was to be renewed, or was not released in time")
	}
	e.closeLocker(l)
	e.closeLocker(other)
}

// holds holds a lock for four TTLs. It returns false if the lock expired or its release timed
// out, as on a machine that stands still for most of a TTL. Any other error fails the test.
func (e *env) holds(l, other *holdfast.Locker, ttl time.Duration) bool {
	e.Helper()
	name := e.name()
	k := e.lockSoon(l, name, ttl)
	tick := time.NewTicker(ttl / 2)
	defer tick.Stop()
	for range 8 {
		<-tick.C
		next, err := other.TryLock(e.Context(), name)
		live := k.Context().Err() == nil // by the clock, after the answer
		if live && !errors.Is(err, holdfast.ErrBusy) {
			e.Fatalf("another Locker gets %v, want busy", err)
		}
		if live {
			continue
		}
		if next != nil {
			_ = next.Unlock()
		}
		_ = k.Unlock()
		if cause := context.Cause(k.Context()); !expired(cause) {
			e.Fatalf("the lock ended: %v", cause)
		}
		return false
	}
	// A release of a short lock also has little time.
	if err := k.Unlock(); expired(err) || errors.Is(err, holdfast.ErrUnavailable) {
		return false
	} else if err != nil {
		e.Errorf("Unlock: %v", err)
	}
	return true
}

// lockSoon locks. The timeout of a request is a third of the TTL, which may be too short for
// a new Locker to connect. In that case lockSoon repeats it.
func (e *env) lockSoon(l *holdfast.Locker, name string, ttl time.Duration) (k *holdfast.Lock) {
	e.Helper()
	var err error
	e.eventually("a lock", func() bool {
		if k, err = l.Lock(e.Context(), name, holdfast.TTL(ttl)); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			e.Fatal(err)
		}
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	return k
}

// expired reports whether a lock was lost because it was not renewed in time.
func expired(err error) bool {
	lost, ok := errors.AsType[*holdfast.LostError](err)
	return ok && lost.Cause == holdfast.CauseExpired
}

// lockersCancel cancels waits at random moments, and requires that nothing is left behind.
func lockersCancel(e *env) {
	name := e.name()
	e.contend(4, 8, 10, func(l *holdfast.Locker) {
		ctx, cancel := context.WithTimeout(e.Context(), rand.N(4*time.Millisecond))
		defer cancel()
		k, err := l.Lock(ctx, name)
		switch {
		case err == nil:
			if err := k.Unlock(); err != nil && !errors.Is(err, holdfast.ErrLost) {
				e.Errorf("Unlock: %v", err)
			}
		case !errors.Is(err, context.DeadlineExceeded):
			e.Errorf("Lock: %v", err)
		}
	})
	e.free(e.open(), name)
}

func lockersBreak(e *env) {
	if e.g.Break == driver.BreakNone || e.g.Visible == driver.VisibleNothing {
		e.Skip("the store cannot break a lock")
	}
	l, operator, name := e.locker(), e.locker(), e.name()
	e.free(e.open(), name) // a store may give the first grant token 1, which has no older one
	k, err := l.Lock(e.Context(), name)
	if err != nil {
		e.Fatal(err)
	}
	st, err := operator.Inspect(e.Context(), name)
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != k.Token() {
		e.Fatalf("Inspect: %+v, %v", st, err)
	}
	if err := operator.Break(e.Context(), name, k.Token()-1); !errors.Is(err, holdfast.ErrNotHeld) {
		e.Fatalf("breaking with an older token: %v", err)
	}
	broken := make(chan error, 1)
	go func() { broken <- operator.Break(e.Context(), name, k.Token()) }()
	e.lostBy(k, holdfast.CauseTaken)
	if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
		e.Errorf("Unlock after a loss: %v", err)
	}
	if err := <-broken; err != nil {
		e.Errorf("Break: %v", err)
	}
	next, err := operator.Lock(e.Context(), name)
	if err != nil {
		e.Fatal(err)
	}
	if next.Token() <= k.Token() {
		e.Errorf("token %d after %d", next.Token(), k.Token())
	}
	if err := next.Unlock(); err != nil {
		e.Error(err)
	}
	e.closeLocker(l)
	e.closeLocker(operator)
}

// lostBy waits until a lock is lost, and compares the cause.
func (e *env) lostBy(k *holdfast.Lock, want holdfast.Cause) {
	e.Helper()
	await(e, k.Context().Done(), "the holder's context did not end")
	cause := context.Cause(k.Context())
	if lost, ok := errors.AsType[*holdfast.LostError](cause); !ok || lost.Cause != want {
		e.Errorf("cause %v, want %s", cause, want)
	}
}

// lockersDown stops the store. It requires that the context ends before the store may grant the
// name again, and that everything works when the store is back.
func lockersDown(e *env) {
	if e.h.Stop == nil {
		e.Skip("the harness cannot stop the store")
	}
	l, name := e.locker(), e.name()
	k := e.lockSoon(l, name, e.h.TTL)
	e.h.Stop(e.T)
	if _, err := l.TryLock(e.Context(), e.name(), holdfast.TTL(e.h.TTL)); !errors.Is(err, holdfast.ErrUnavailable) {
		e.Errorf("TryLock on a stopped store: %v", err)
	}
	if e.g.MaxTTL > 0 {
		e.lostBy(k, holdfast.CauseExpired)
	}
	e.h.Start(e.T)
	_ = k.Unlock()
	next, err := l.Lock(e.Context(), name)
	if err != nil {
		e.Fatalf("after the store is back: %v", err)
	}
	if err := next.Unlock(); err != nil {
		e.Error(err)
	}
	e.closeLocker(l)
}
