package drivertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// validityFromTheSend requires that SentAt lies between the call and its return. After a wait,
// it must lie after the report of the queue entry: a request of the waiter may be on its way when the
// release begins. If a session confirms grants it may be earlier, by less than half of the TTL.
func validityFromTheSend(e *env) {
	e.leases()
	inside := func(what string, at driver.Instant, from time.Time) {
		e.Helper()
		switch elapsed, _ := at.Elapsed(); {
		case at.Time().After(time.Now()):
			e.Errorf("%s: SentAt %s is in the future", what, at.Time())
		case e.h.Session && elapsed > long/2:
			e.Errorf("%s: SentAt is %s ago, of a TTL of %s", what, elapsed, long)
		case !e.h.Session && at.Time().Before(from):
			e.Errorf("%s: SentAt %s is before %s", what, at.Time(), from)
		}
	}
	a, b, name := e.open(), e.open(), e.name()
	before := time.Now()
	g := e.must(a, e.request(name, driver.Exclusive, long))
	inside("a first grant", g.SentAt, before)
	w := e.queue(b, e.request(name, driver.Exclusive, long))
	e.release(a, g)
	got := w.granted()
	inside("a grant after a wait", got.SentAt, *from(w.r).first.Load())
	before = time.Now()
	r := b.Renew(e.Context(), []driver.Grant{got})
	if len(r) != 1 || r[0].Err != nil {
		e.Fatalf("Renew: %+v", r)
	}
	inside("a renewal", r[0].SentAt, before)
	e.release(b, got)
}

// answerDelay is the delay of every answer, or of every request, in the tests of validity.
const answerDelay = 100 * time.Millisecond

// delays delays every answer, or every request, until it is called with 0.
type delays func(t testing.TB, d time.Duration)

// delayed delays every answer, or every request, until the returned function is called.
func (e *env) delayed(delay delays, d time.Duration) (end func()) {
	e.Helper()
	delay(e.T, d)
	ended := false
	end = func() {
		if !ended {
			ended = true
			delay(e.T, 0)
		}
	}
	e.Cleanup(end)
	return end
}

// validityNotFromTheAnswer delays every answer of the store and requires that no part of the
// delay counts as validity: the request that confirmed a grant was sent at least that long
// before the grant, or its renewal, was returned.
func validityNotFromTheAnswer(e *env) {
	e.leases()
	if e.h.Delay == nil {
		e.Skip("the harness cannot delay answers")
	}
	e.validityUnder(e.h.Delay, e.kinds())
}

// validityNotFromTheArrival delays every request on its way to the store. The validity of a grant or
// of a renewal runs from before the send, and not from the arrival.
func validityNotFromTheArrival(e *env) {
	e.leases()
	if e.h.DelayRequests == nil {
		e.Skip("the harness cannot delay requests")
	}
	e.validityUnder(e.h.DelayRequests, []int{driver.Exclusive})
}

// validityUnder tests each path that yields or prolongs a grant.
func (e *env) validityUnder(delay delays, limits []int) {
	e.Helper()
	a, b, name := e.open(), e.open(), e.name()
	e.free(a, name) // connects the client
	e.free(b, name)
	e.swapDelayed(delay, a, name)
	if !e.h.Session { // a session may have been proven for longer than the TTL of its grants
		e.ownReleaseDelayed(delay, a, name)
	}
	e.batchDelayed(delay, a)
	for _, limit := range limits {
		name = e.name() // a store may keep a semaphore's number of permits
		e.release(a, e.acquireDelayed(delay, a, e.request(name, limit, long)))
		// The delay is a large part of this TTL: a session does not repeat a keepalive that was
		// answered a small part of its TTL ago.
		if !e.longer(func(ttl time.Duration) bool { return e.renewedDelayed(delay, a, e.request(name, limit, 8*ttl)) }) {
			e.Errorf("limit %d: no grant was renewed within its TTL", limit)
		}
		if e.g.Wake == driver.WakePush {
			r := e.request(name, limit, long)
			r.Wait = true
			e.release(a, e.acquireDelayed(delay, a, r))
		}
		if e.canFill(limit) {
			e.waitersDelayed(delay, a, b, name, limit)
		}
	}
	e.free(a, name)
}

// sentBeforeDelay requires that SentAt is at least answerDelay before the return.
func (e *env) sentBeforeDelay(limit int, what string, sent driver.Instant, returned time.Time) {
	e.Helper()
	if age := returned.Sub(sent.Time()); age < answerDelay {
		e.Errorf("limit %d, %s: SentAt is %s before the return although every answer, or every request, was delayed by %s: validity runs from before the request was sent", limit, what, age, answerDelay)
	}
}

// swapDelayed swaps a grant while messages are delayed.
func (e *env) swapDelayed(delay delays, s driver.Store, name string) {
	e.Helper()
	if !e.swaps() {
		return
	}
	g := e.must(s, e.request(name, driver.Exclusive, long))
	for range 2 {
		end := e.delayed(delay, answerDelay)
		w := e.swapped(s, g, e.request(name, driver.Exclusive, long))
		g = w.granted()
		end()
		e.sentBeforeDelay(driver.Exclusive, "a grant by a swap", g.SentAt, w.at)
	}
	e.release(s, g)
}

// ownReleaseDelayed releases a grant for a waiter of the same client. The store may grant in the release.
func (e *env) ownReleaseDelayed(delay delays, s driver.Store, name string) {
	e.Helper()
	held := e.must(s, e.request(name, driver.Exclusive, long))
	r := e.request(name, driver.Exclusive, long)
	r.Provisional = true
	w := e.queue(s, r)
	end := e.delayed(delay, answerDelay)
	e.release(s, held)
	g := w.granted()
	end()
	e.sentBeforeDelay(driver.Exclusive, "a grant by the client's own release", g.SentAt, w.at)
	e.release(s, g)
}

// batchDelayed makes many requests at once, and renews their grants in one call.
func (e *env) batchDelayed(delay delays, s driver.Store) {
	e.Helper()
	grants := make([]driver.Grant, 20)
	returned := make([]time.Time, len(grants))
	end := e.delayed(delay, answerDelay)
	var all sync.WaitGroup
	for i := range grants {
		r := e.request(e.name(), driver.Exclusive, long)
		all.Go(func() {
			var err error
			if grants[i], err = s.Acquire(e.Context(), r); err != nil {
				e.Errorf("Acquire(%q): %v", r.Name, err)
			}
			returned[i] = time.Now()
		})
	}
	all.Wait()
	end()
	if e.Failed() {
		return
	}
	for i, g := range grants {
		e.sentBeforeDelay(driver.Exclusive, "a grant of many at once", g.SentAt, returned[i])
	}
	if grants[0].TTL != driver.Forever {
		end = e.delayed(delay, answerDelay)
		answers := s.Renew(e.Context(), grants)
		at := time.Now()
		end()
		for i, a := range answers {
			if a.Err != nil {
				e.Errorf("Renew(%q): %v", grants[i].Name, a.Err)
				continue
			}
			// A session does not repeat a heartbeat that was answered a short time ago.
			e.sentBeforeDelay(driver.Exclusive, "a renewal of many grants", a.SentAt, at)
		}
	}
	e.releaseAll(s, grants)
}

// acquireDelayed acquires a free name while messages are delayed.
func (e *env) acquireDelayed(delay delays, s driver.Store, r driver.Request) driver.Grant {
	e.Helper()
	end := e.delayed(delay, answerDelay)
	defer end()
	g, err := s.Acquire(e.Context(), r)
	returned := time.Now()
	if err != nil {
		e.Fatalf("Acquire(%q, limit %d): %v", r.Name, r.Limit, err)
	}
	e.checkGrant(r, g)
	what := "a first grant"
	if r.Wait {
		what = "a first grant of a request that may wait"
	}
	e.sentBeforeDelay(r.Limit, what, g.SentAt, returned)
	return g
}

// renewedDelayed renews a new grant twice while every answer is delayed, and releases it. It
// returns false if the grant expired before its renewal.
func (e *env) renewedDelayed(delay delays, s driver.Store, r driver.Request) bool {
	e.Helper()
	g := e.acquireDelayed(delay, s, r)
	for i := range 2 {
		end := e.delayed(delay, answerDelay)
		renewals := s.Renew(e.Context(), []driver.Grant{g})
		returned := time.Now()
		end()
		if len(renewals) != 1 || renewals[0].Err != nil {
			if !over(g) {
				e.Fatalf("Renew: %+v", renewals)
			}
			_ = s.Release(e.Context(), g, 0)
			return false
		}
		e.sentBeforeDelay(r.Limit, fmt.Sprintf("renewal %d", i+1), renewals[0].SentAt, returned)
	}
	e.release(s, g)
	return true
}

// waitersDelayed lets two requests wait for a name, and releases the name while every answer is
// delayed. If the limit admits both, the store may derive the second grant from the first.
func (e *env) waitersDelayed(delay delays, a, b driver.Store, name string, limit int) {
	e.Helper()
	held := e.full(a, name, limit)
	first, second := e.queue(b, e.request(name, limit, long)), e.queue(e.open(), e.request(name, limit, long))
	end := e.delayed(delay, answerDelay)
	e.releaseAll(a, held)
	for range 2 {
		w := first
		select {
		case <-first.done:
		case <-second.done:
			w = second
		case <-time.After(e.timeout()):
		}
		got := w.granted()
		w.done = nil // the next select waits for the other one
		e.sentBeforeDelay(limit, "a grant after a wait", got.SentAt, w.at)
		e.release(w.s, got)
	}
	end()
}

// queuedHook receives one value for each lock call that starts to wait.
type queuedHook chan struct{}

func (queuedHook) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (q queuedHook) Event(_ context.Context, ev holdfast.Event) {
	if ev.Kind == holdfast.EventQueued {
		wakeup.Send(q)
	}
}

// lockersDelayed requires of a Locker what validityNotFromTheAnswer requires of a store. It
// tests a lock granted at once, one after a wait, and one by a local handoff.
func lockersDelayed(e *env) {
	e.leases()
	if e.h.Delay == nil {
		e.Skip("the harness cannot delay answers")
	}
	options := []holdfast.LockOption{holdfast.TTL(long), holdfast.Margin(0)}
	queued := make(queuedHook, 8)
	holder := e.locker(holdfast.LocalHandoff(1), holdfast.WithHooks(queued))
	other := e.locker()
	name := e.name()
	for _, l := range []*holdfast.Locker{holder, other} { // connects the clients
		must.Succeed(e, l.Do(e.Context(), name, func(context.Context) error { return nil }, options...))
	}
	short := func(what string, k *holdfast.Lock) {
		e.Helper()
		if left := k.Remaining(); left > long+e.g.Granularity-answerDelay {
			e.Errorf("%s is valid for %s more although its answer took %s of the TTL of %s", what, left, answerDelay, long)
		}
	}
	lock := func(l *holdfast.Locker) <-chan *holdfast.Lock {
		got := make(chan *holdfast.Lock, 1)
		go func() {
			defer close(got)
			k, err := l.Lock(e.Context(), name, options...)
			if err != nil {
				e.Errorf("Lock: %v", err)
				return
			}
			got <- k
		}()
		return got
	}
	take := func(got <-chan *holdfast.Lock) *holdfast.Lock {
		e.Helper()
		select {
		case k := <-got:
			if k != nil {
				return k
			}
		case <-time.After(e.timeout()):
		}
		e.Fatalf("%q was not locked within %s", name, e.timeout())
		return nil
	}
	unlock := func(k *holdfast.Lock) {
		e.Helper()
		if err := k.Unlock(); err != nil {
			e.Errorf("Unlock: %v", err)
		}
	}
	end := e.delayed(e.h.Delay, answerDelay)
	k := take(lock(holder))
	short("a lock", k)
	waits := lock(holder)
	await(e, queued, "no goroutine waits for the name")
	unlock(k)
	k = take(waits)
	short("a lock by a local handoff", k)
	waits = lock(other)
	unlock(k)
	k = take(waits)
	short("a lock after a wait", k)
	unlock(k)
	end()
	e.closeLocker(holder)
	e.closeLocker(other)
}

// standsForItsTTL requires that no other grant begins before SentAt + TTL of the last request
// that set the deadline. It tests every limit, with a grant made at once, one after a wait, and
// a renewed one.
func standsForItsTTL(e *env) {
	e.leases()
	stands := func(limit int, waited, renewed bool) func(*env) {
		return func(e *env) {
			a, b := e.open(), e.open()
			var name string
			var g driver.Grant
			inTime := e.longer(func(ttl time.Duration) bool {
				name = e.name()
				if waited {
					// The TTL is longer than that for which the queue entry may have stood.
					g = e.grantedAfterWait(a, b, e.request(name, limit, 3*ttl))
				} else {
					g = e.must(a, e.request(name, limit, ttl))
				}
				if !renewed {
					return true
				}
				time.Sleep(g.TTL / 4)
				return e.renewed(a, &g)
			})
			if !inTime {
				e.Skip("the machine was too busy to renew in time")
			}
			e.standsUntilItsEnd(b, g)
		}
	}
	all := map[string]func(*env){}
	for _, limit := range e.limits() {
		all[fmt.Sprintf("limit %d", limit)] = stands(limit, false, false)
		all[fmt.Sprintf("limit %d, renewed", limit)] = stands(limit, false, true)
		if e.canFill(limit) {
			all[fmt.Sprintf("limit %d, after a wait", limit)] = stands(limit, true, false)
		}
	}
	e.inTurns(len(all), all)
}

// standsAfterDelays is standsForItsTTL for grants that were made and renewed while every answer
// was delayed. It finds a SentAt that lies between two requests of one step, of which the first
// has set the deadline.
func standsAfterDelays(e *env) {
	e.leases()
	if e.h.Delay == nil {
		e.Skip("the harness cannot delay answers")
	}
	ttl := 8 * e.h.TTL
	type item struct {
		what  string
		begin func() // runs before the answers are delayed
		grant func() (driver.Grant, bool)
		g     driver.Grant
		ok    bool
	}
	var items []*item
	a, b := e.open(), e.open()
	for _, limit := range e.limits() {
		first, renewed, waited := e.request(e.name(), limit, ttl), e.request(e.name(), limit, ttl), e.request(e.name(), limit, ttl)
		items = append(items, &item{what: fmt.Sprintf("limit %d", limit),
			begin: func() {},
			grant: func() (driver.Grant, bool) {
				g, err := a.Acquire(e.Context(), first)
				if err != nil {
					e.Errorf("Acquire(%q): %v", first.Name, err)
				}
				return g, err == nil
			}})
		var g driver.Grant
		items = append(items, &item{what: fmt.Sprintf("limit %d, renewed", limit),
			begin: func() { g = e.must(a, renewed) },
			grant: func() (driver.Grant, bool) {
				return g, e.renewed(a, &g)
			}})
		if !e.canFill(limit) {
			continue
		}
		var held []driver.Grant
		var w *waiting
		items = append(items, &item{what: fmt.Sprintf("limit %d, after a wait", limit),
			begin: func() {
				held = e.full(b, waited.Name, limit)
				w = e.queue(a, waited)
			},
			grant: func() (driver.Grant, bool) {
				for _, h := range held {
					if err := b.Release(e.Context(), h, 0); err != nil {
						e.Errorf("Release(%q): %v", h.Name, err)
						return driver.Grant{}, false
					}
				}
				<-w.done
				if w.err != nil {
					e.Errorf("waiting for %q: %v", waited.Name, w.err)
				}
				return w.g, w.err == nil
			}})
	}
	for _, it := range items {
		it.begin()
	}
	end := e.delayed(e.h.Delay, answerDelay)
	var all sync.WaitGroup
	for _, it := range items {
		all.Go(func() { it.g, it.ok = it.grant() })
	}
	all.Wait()
	end()
	tests := map[string]func(*env){}
	for _, it := range items {
		if it.ok {
			tests[it.what] = func(e *env) { e.standsUntilItsEnd(e.open(), it.g) }
		}
	}
	e.inTurns(len(tests), tests)
}

// canFill reports whether full can make a request of the limit wait.
func (e *env) canFill(limit int) bool { return e.g.Mixed || limit != driver.Unlimited }

// full acquires a name, so that a request of the limit has to wait: exclusively if limits mix,
// else by as many grants of the limit as the rule admits.
func (e *env) full(s driver.Store, name string, limit int) (held []driver.Grant) {
	e.Helper()
	n := limit
	if e.g.Mixed {
		n, limit = 1, driver.Exclusive
	}
	for range n {
		held = append(held, e.must(s, e.request(name, limit, long)))
	}
	return held
}

func (e *env) releaseAll(s driver.Store, grants []driver.Grant) {
	e.Helper()
	for _, g := range grants {
		e.release(s, g)
	}
}

// grantedAfterWait waits for a name that other acquires and then releases.
func (e *env) grantedAfterWait(s, other driver.Store, r driver.Request) driver.Grant {
	e.Helper()
	held := e.full(other, r.Name, r.Limit)
	w := e.queue(s, r)
	e.releaseAll(other, held)
	return w.granted()
}

// standsUntilItsEnd requires that a grant without further renewals keeps its name for its TTL.
// An exclusive waiter must get the name after that.
func (e *env) standsUntilItsEnd(s driver.Store, g driver.Grant) {
	e.Helper()
	w := e.wait(s, e.request(g.Name, driver.Exclusive, long))
	next := w.granted()
	// The time ends with the answer: the request, and the validity, of the next grant may begin
	// before the end that is tested here.
	if stood := w.at.Sub(g.SentAt.Time()); stood < g.TTL {
		e.Errorf("%q was granted to another client %s after the request that set the TTL of %s was sent", g.Name, stood, g.TTL)
	}
	e.release(s, next)
}

// longerTTLStands requires that a grant stands for its own TTL beside grants with shorter ones.
// Those are of the same name, renewed or not, or of the same client.
func longerTTLStands(e *env) {
	e.leases()
	all := map[string]func(*env){}
	for _, limit := range e.limits() {
		if limit == driver.Exclusive {
			continue
		}
		for _, longFirst := range []bool{false, true} {
			all[fmt.Sprintf("limit %d, long first %t", limit, longFirst)] = func(e *env) {
				a, b, name := e.open(), e.open(), e.name()
				take := func(s driver.Store, ttl time.Duration) driver.Grant {
					began, r := time.Now(), e.request(name, limit, ttl)
					g, err := s.Acquire(e.Context(), r)
					if err != nil && time.Since(began) >= ttl {
						// This process stood still within the request, for longer than the TTL.
						return e.must(s, e.request(name, limit, ttl))
					}
					if err != nil {
						e.Fatalf("%q, limit %d, request %s: %v, want a grant: no holder or waiter excludes it", name, limit, r.ID, err)
					}
					e.checkGrant(r, g)
					return g
				}
				var kept, brief driver.Grant
				if longFirst {
					kept, brief = take(a, 4*e.h.TTL), take(b, e.h.TTL)
				} else {
					brief, kept = take(b, e.h.TTL), take(a, 4*e.h.TTL)
				}
				e.renewed(b, &brief)
				e.standsUntilItsEnd(b, kept)
			}
		}
	}
	e.inTurns(len(all), all)
}

// longerTTLOutlastsStop requires that a grant with a longer TTL stands when its client was unreachable for longer than
// the shorter TTL of another grant.
func longerTTLOutlastsStop(e *env) {
	e.leases()
	if e.h.Stop == nil {
		e.Skip("the harness cannot stop the store")
	}
	a, b, name := e.open(), e.open(), e.name()
	e.must(a, e.request(e.name(), driver.Exclusive, e.h.TTL))
	g := e.must(a, e.request(name, driver.Exclusive, 16*e.h.TTL))
	e.free(b, e.name()) // connects the client
	e.h.Stop(e.T)
	time.Sleep(3 * e.h.TTL)
	e.h.Start(e.T)
	var next driver.Grant
	var err error
	e.eventually("the store answers again", func() bool {
		next, err = e.try(b, e.request(name, driver.Exclusive, long))
		return err == nil || b.Classify(err) == driver.CodeBusy
	}, func() string { return fmt.Sprint(err) })
	if elapsed, _ := g.SentAt.Elapsed(); err == nil && elapsed < g.TTL {
		e.Errorf("%q was granted to another client %s after the request that set its TTL of %s was sent; the same client holds another grant of %s",
			name, elapsed, g.TTL, e.h.TTL)
	}
	if err == nil {
		e.release(b, next)
	}
	_ = a.Release(e.Context(), g, 0) // the grant may have expired on a slow machine
}
