package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// locker makes a Locker with its own client.
func (e *env) locker(o ...holdfast.Option) *holdfast.Locker {
	e.Helper()
	l, err := holdfast.New(e.open(), o...)
	must.Succeed(e, err)
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

// unlockedNameIsFree lets callers lock a name without a pause. When each has unlocked, the name must be free at once:
// neither a Locker nor its store keeps it, or an entry for it, for a caller that may come back.
func unlockedNameIsFree(e *env) {
	const lockers, rounds, pairs = 3, 5, 12
	patient := holdfast.RequestTimeout(e.timeout()) // as in contend
	name, other := e.name(), e.locker(patient)
	var all []*holdfast.Locker
	for range lockers {
		all = append(all, e.locker(patient))
	}
	for range rounds {
		var callers sync.WaitGroup
		for _, l := range all {
			callers.Go(func() {
				for range pairs {
					if err := l.Do(e.Context(), name, func(context.Context) error { return nil }); err != nil {
						e.Errorf("Do: %v", err)
					}
				}
			})
		}
		callers.Wait()
		k, err := other.TryLock(e.Context(), name)
		if err != nil {
			e.Fatalf("TryLock of a name that every caller has unlocked: %v", err)
		}
		if err := k.Unlock(); err != nil {
			e.Errorf("Unlock: %v", err)
		}
	}
	for _, l := range append(all, other) {
		e.closeLocker(l)
	}
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

// lockersLoseAnswers makes goroutines of two Lockers contend for a name while answers are lost, with and without
// handoffs. No two of them hold the lock together, tokens rise, and nothing is left.
func lockersLoseAnswers(e *env) {
	lossy := e.lossy()
	if lossy == nil {
		e.Skip("the harness cannot lose answers")
	}
	const goroutines, pairs, every = 4, 96, 16
	name := e.name()
	var inside atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	for _, options := range [][]holdfast.Option{nil, {holdfast.LocalHandoff(0)}} {
		d := lossy(e)
		l, err := holdfast.New(d.s, options...)
		must.Succeed(e, err)
		mayFail := func(err error) bool {
			return err == nil || errors.Is(err, holdfast.ErrUnavailable) ||
				e.g.Crash == driver.CrashFreesAtOnce && errors.Is(err, holdfast.ErrLost)
		}
		var done atomic.Int32
		var own sync.WaitGroup
		for range goroutines {
			own.Go(func() {
				for done.Load() < pairs && !e.Failed() {
					k, err := l.Lock(e.Context(), name, holdfast.TTL(long))
					if !mayFail(err) {
						e.Errorf("Lock: %v", err)
					}
					if err != nil {
						continue
					}
					if inside.Add(1) != 1 {
						e.Error("two holders have the lock together")
					}
					if before := last.Swap(k.Token()); before >= k.Token() {
						e.Errorf("token %d after %d", k.Token(), before)
					}
					inside.Add(-1)
					if n := done.Add(1); n%every == 0 {
						d.begin(int(n/every) % 2) // some stores read before they write
					}
					if err := k.Unlock(); !mayFail(err) {
						e.Errorf("Unlock: %v", err)
					}
				}
			})
		}
		all.Go(func() {
			own.Wait()
			d.end()
			e.closeLocker(l)
		})
	}
	all.Wait()
	e.free(e.open(), name)
}

// lockSoon locks. The timeout of a request is a third of the TTL, which may be too short for
// a new Locker to connect. In that case lockSoon repeats it.
func (e *env) lockSoon(l *holdfast.Locker, name string, ttl time.Duration, o ...holdfast.LockOption) (k *holdfast.Lock) {
	e.Helper()
	var err error
	e.eventually("a lock", func() bool {
		if k, err = l.Lock(e.Context(), name, append(o[:len(o):len(o)], holdfast.TTL(ttl))...); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
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

// fewPasses is how many grants a client may get while another one waits, where the store has an order.
const fewPasses = 10

// lockersTakeTurns requires that a client that takes a lock again at once does not keep out one that waits.
func lockersTakeTurns(e *env) { e.passed(1, nil, nil) }

// lockersWriter requires that readers whose locks overlap do not keep out a writer.
func lockersWriter(e *env) {
	if !e.g.Shared {
		e.Skip("the store has no shared locks")
	}
	e.passed(3, []holdfast.LockOption{holdfast.Shared()}, nil)
}

// lockersSmallerLimit requires that permits of a semaphore do not keep out a request of a smaller limit.
func lockersSmallerLimit(e *env) {
	if !e.g.Semaphore {
		e.Skip("the store has no semaphores")
	}
	e.passed(4, []holdfast.LockOption{holdfast.Limit(4)}, []holdfast.LockOption{holdfast.Limit(2)})
}

// passed lets clients take a lock in turn with themselves, and requires that another client gets it meanwhile. If the
// store has no order, the clients may also end first. It logs what the other client has waited for.
func (e *env) passed(clients int, theirs, others []holdfast.LockOption) {
	const work = 60 * time.Millisecond
	name := e.name()
	var got, waiting atomic.Bool
	var passes atomic.Int32
	var held, running sync.WaitGroup
	held.Add(clients)
	for i := range clients {
		running.Go(func() {
			l := e.locker(holdfast.RequestTimeout(e.timeout()))
			defer e.closeLocker(l)
			first := sync.OnceFunc(held.Done)
			defer first()
			for n := 0; !got.Load(); n++ {
				k := e.lockSoon(l, name, long, theirs...)
				if waiting.Load() && !got.Load() {
					passes.Add(1)
				}
				first()
				time.Sleep(work + time.Duration(20*i)*time.Millisecond) // the work; that of readers overlaps
				if err := k.Unlock(); err != nil {
					e.Errorf("Unlock: %v", err)
				}
				if n == fewPasses*clients {
					if e.g.Order != driver.OrderNone {
						e.Errorf("%q: %d grants of one client while another one waits", name, n)
					}
					return
				}
			}
		})
	}
	held.Wait()
	l := e.locker(holdfast.RequestTimeout(e.timeout()))
	waiting.Store(true)
	began := time.Now()
	k := e.lockSoon(l, name, long, others...)
	got.Store(true)
	e.Logf("order %s: %d grants to %d other clients and %.1f times their work before the grant", e.g.Order, passes.Load(), clients, float64(time.Since(began))/float64(work))
	if err := k.Unlock(); err != nil {
		e.Errorf("Unlock: %v", err)
	}
	e.closeLocker(l)
	running.Wait()
	e.free(e.open(), name)
}

// lockersLead requires that each of three candidates leads, if the time of a leader is limited. It logs their terms.
func lockersLead(e *env) {
	const candidates, enough, most = 3, 4, 20 * 3
	name := e.name()
	ctx, stop := context.WithCancel(e.Context())
	defer stop()
	var all []*holdfast.Locker
	for range candidates {
		all = append(all, e.locker(holdfast.RequestTimeout(e.timeout())))
	}
	var mu sync.Mutex
	terms, total := make([]int, candidates), 0 // guarded by mu
	var running sync.WaitGroup
	for i, l := range all {
		running.Go(func() {
			defer e.closeLocker(l)
			err := l.Lead(ctx, name, func(ctx context.Context) error {
				mu.Lock()
				terms[i]++
				if total++; slices.Min(terms) == enough || total == most {
					stop()
				}
				mu.Unlock()
				<-ctx.Done()
				return ctx.Err()
			}, holdfast.TTL(long), holdfast.MaxHold(50*time.Millisecond))
			if !errors.Is(err, context.Canceled) {
				e.Errorf("Lead: %v", err)
			}
		})
	}
	running.Wait()
	e.Logf("order %s: terms of each candidate: %d", e.g.Order, terms)
	if slices.Min(terms) == 0 {
		e.Errorf("%q: terms of each candidate: %d", name, terms)
	}
	e.free(e.open(), name)
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
	l, operator, s, name := e.locker(), e.locker(), e.open(), e.name()
	e.free(s, name) // a store may give the first grant token 1, which has no older one
	k, err := l.Lock(e.Context(), name)
	must.Succeed(e, err)
	e.shown(s, name, k.Token())
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
	must.Succeed(e, err)
	if next.Token() <= k.Token() {
		e.Errorf("token %d after %d", next.Token(), k.Token())
	}
	must.Report(e, next.Unlock())
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
	must.Report(e, next.Unlock())
	e.closeLocker(l)
}

// sweeper is a store that removes what it no longer needs when an operator says so.
type sweeper interface {
	Sweep(ctx context.Context, idle time.Duration) error
}

// operatorsBesideLockers lets Lockers contend for names without a pause, while operators inspect, list and sweep
// without a pause, and break grants that have ended. No lock may be lost, and the tokens must rise.
func operatorsBesideLockers(e *env) {
	names := []string{e.name(), e.name(), e.name()}
	var inside [3]atomic.Int32
	var last [3]atomic.Uint64
	ctx, stop := context.WithCancel(e.Context())
	defer stop()
	var operators sync.WaitGroup
	operate := func(work func(s driver.Store, i int) error, also ...driver.Code) {
		expected := append(also, driver.CodeNotHeld, driver.CodeUnavailable)
		s := e.open()
		operators.Go(func() {
			for i := 0; ctx.Err() == nil; i = (i + 1) % len(names) {
				err := work(s, i)
				if err != nil && ctx.Err() == nil && !slices.Contains(expected, s.Classify(err)) {
					e.Errorf("%q: an operator beside live clients: %v", names[i], err)
					return
				}
			}
		})
	}
	s := e.observer()
	if _, ok := s.(driver.Inspector); ok {
		operate(func(s driver.Store, i int) error {
			st, err := s.(driver.Inspector).Inspect(ctx, names[i])
			if err == nil && len(st.Holders) > 1 {
				e.Errorf("%q: an inspection shows %d exclusive holders: %+v", names[i], len(st.Holders), st.Holders)
			}
			return err
		})
		operate(func(s driver.Store, _ int) (failed error) {
			for _, err := range s.(driver.Inspector).List(ctx, names[0][:len("suite-")]) {
				failed = errors.Join(failed, err)
			}
			return failed
		})
	}
	if _, ok := s.(driver.Breaker); ok {
		operate(func(s driver.Store, i int) error {
			const older = 2 * driver.HandoffMax // than all tokens of the present grant
			if token := last[i].Load(); token > older {
				return s.(driver.Breaker).Break(ctx, names[i], token-older)
			}
			return nil
		}, driver.CodeUnknown) // on a busy machine a server may not answer in time
	}
	if _, ok := s.(sweeper); ok {
		// Without an idle time, a sweep could remove what a request has read and is about to replace.
		operate(func(s driver.Store, _ int) error { return s.(sweeper).Sweep(ctx, time.Minute) })
	}
	e.contend(3, 4, 6, func(l *holdfast.Locker) {
		i := rand.IntN(len(names))
		err := l.Do(e.Context(), names[i], func(ctx context.Context) error {
			if inside[i].Add(1) != 1 {
				e.Errorf("%q: two holders have the lock together", names[i])
			}
			defer inside[i].Add(-1)
			if token := holdfast.Token(ctx, names[i]); token <= last[i].Swap(token) {
				e.Errorf("%q: token %d does not rise: %s", names[i], token, tokenRule)
			}
			time.Sleep(rand.N(time.Millisecond)) // the operators find the lock held
			return nil
		}, holdfast.TTL(long))
		if err != nil {
			e.Errorf("Do: %v", err)
		}
	})
	stop()
	operators.Wait()
	for _, name := range names {
		e.free(e.observer(), name)
	}
}
