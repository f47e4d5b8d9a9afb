package drivertest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// swapper returns the store's Swap, and skips the test if it has none.
func (e *env) swapper(s driver.Store) driver.Swapper {
	e.Helper()
	sw, ok := s.(driver.Swapper)
	if !ok {
		e.Skip("the store does not release and request in one step")
	}
	if !e.waitsInOrder() {
		e.Skip("the core swaps only where a request can wait, in order or with reserved tokens")
	}
	return sw
}

func (e *env) waitsInOrder() bool {
	return e.g.Wake == driver.WakePush && (e.g.Order == driver.OrderFIFO || e.g.Reserves)
}

// swaps reports whether the core swaps grants of the store.
func (e *env) swaps() bool {
	_, ok := e.observer().(driver.Swapper)
	return ok && e.waitsInOrder()
}

// inQueue skips the test if the store does not serve waiters in order: without a queue at the
// store they race.
func (e *env) inQueue() {
	e.Helper()
	if e.g.Order != driver.OrderFIFO && e.g.Fallback > 0 {
		e.Skip("the store has no queue")
	}
}

// swap releases a grant and waits for another request in one call. It returns when the release
// has its outcome. It repeats a Swap that returns an error and no outcome of the release.
func (e *env) swap(s driver.Store, old driver.Grant, r driver.Request) (w *waiting, released error) {
	e.Helper()
	for end := time.Now().Add(e.timeout()); ; time.Sleep(5 * time.Millisecond) {
		w, released, reported := e.swapOnce(e.Context(), s, old, r)
		if reported {
			return w, released
		}
		if s.Classify(w.err) == driver.CodeUnknown {
			e.undone(s, w.r)
		}
		if time.Now().After(end) {
			e.Fatalf("Swap returns without the outcome of the release again and again: %v", w.err)
		}
		r = e.request(r.Name, r.Limit, r.TTL)
	}
}

// swapOnce is one call of Swap. If it is not reported, nothing of the release was applied.
func (e *env) swapOnce(ctx context.Context, s driver.Store, old driver.Grant, r driver.Request) (
	w *waiting, released error, reported bool) {
	e.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w = &waiting{e: e, s: s, r: r, cancel: cancel, done: make(chan struct{})}
	w.r.Wait = true
	answers := make(chan error, 8)
	var ended, called atomic.Bool
	go func() {
		defer close(w.done)
		defer ended.Store(true)
		w.g, w.err = e.swapper(s).Swap(ctx, old, w.r, func(err error) {
			if ended.Load() {
				e.Error("released was called after Swap had returned")
			}
			if called.Swap(true) {
				e.Error("Swap called released twice")
			}
			answers <- err
		})
		w.at = time.Now()
	}()
	select {
	case released = <-answers:
	case <-w.done:
		select {
		case released = <-answers:
		default:
			if w.err == nil {
				e.Fatalf("Swap returned a grant without the outcome of the release: %+v", w.g)
			}
			return w, nil, false
		}
	case <-time.After(e.timeout()):
		e.Fatal("Swap did not report the outcome of the release")
	}
	return w, released, true
}

// swapped calls swap for a grant that stands, and requires that the release succeeds.
func (e *env) swapped(s driver.Store, old driver.Grant, r driver.Request) *waiting {
	e.Helper()
	w, err := e.swap(s, old, r)
	if err != nil {
		e.Fatalf("the release of a grant that stands, by Swap: %v", err)
	}
	return w
}

// swaps requires that Swap releases the old grant and requests the next one, for the same client
// and with a larger token.
func swaps(e *env) {
	s, name := e.open(), e.name()
	e.swapper(s)
	g := e.must(s, e.request(name, driver.Exclusive, long))
	for range 20 {
		next := e.swapped(s, g, e.request(name, driver.Exclusive, long)).granted()
		e.above(next, g)
		e.code(s, s.Release(e.Context(), g, 0), driver.CodeNotHeld, "releasing a grant that Swap has released")
		e.busy(e.observer(), e.request(name, driver.Exclusive, long))
		g = next
	}
	if g.TTL != driver.Forever {
		if a := s.Renew(e.Context(), []driver.Grant{g})[0]; a.Err != nil {
			e.Errorf("Renew: %v", a.Err)
		}
	}
	e.release(s, g)
	e.free(s, name)
}

// swapQueuesLast requires that the request of a Swap is behind every waiter, and that the release
// grants the first of them.
func swapQueuesLast(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	e.swapper(a)
	e.inQueue()
	g := e.must(a, e.request(name, driver.Exclusive, long))
	for range 5 {
		first := e.queue(b, e.request(name, driver.Exclusive, long))
		w := e.swapped(a, g, e.request(name, driver.Exclusive, long))
		got := first.granted()
		e.above(got, g)
		e.drain(a)
		w.pendingStill()
		e.release(b, got)
		g = w.granted()
		e.above(g, got)
	}
	// The waiter gives up, and the holder's own release is not affected.
	first := e.queue(b, e.request(name, driver.Exclusive, long))
	w := e.swapped(a, g, e.request(name, driver.Exclusive, long))
	got := first.granted()
	w.leave()
	e.release(b, got)
	e.free(b, name)
}

// swapOfYoungGrant requires the same of a swap right after the grant, which the core makes
// after few handoffs. The waiter is in the queue before the grant.
func swapOfYoungGrant(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	e.swapper(a)
	e.inQueue()
	last := e.must(b, e.request(name, driver.Exclusive, long))
	for range 5 {
		own := e.queue(a, e.request(name, driver.Exclusive, long))
		first := e.queue(b, e.request(name, driver.Exclusive, long))
		e.release(b, last)
		g := own.granted()
		w := e.swapped(a, g, e.request(name, driver.Exclusive, long))
		last = first.granted()
		e.above(last, g)
		e.drain(a)
		w.pendingStill()
		e.release(b, last)
		next := w.granted()
		e.above(next, last)
		// Without a waiter, the lock goes from one grant to the next.
		for range 3 {
			g, next = next, e.swapped(a, next, e.request(name, driver.Exclusive, long)).granted()
			e.above(next, g)
			e.code(a, a.Release(e.Context(), g, 0), driver.CodeNotHeld, "releasing a grant that Swap has released")
		}
		e.busy(b, e.request(name, driver.Exclusive, long))
		e.release(a, next)
		last = e.must(b, e.request(name, driver.Exclusive, long))
		e.above(last, next)
	}
	e.release(b, last)
	e.free(a, name)
}

// swapToAnotherRequest requires that the request of a Swap may have another limit than the grant, and a longer TTL.
// It waits for the other grants of the name that exclude it, and ends none.
func swapToAnotherRequest(e *env) {
	a, b := e.open(), e.open()
	e.swapper(a)
	for _, from := range e.kinds() {
		for _, to := range e.kinds() {
			if !e.g.Mixed && (from != driver.Exclusive || to != driver.Exclusive) {
				continue
			}
			name := e.name()
			old := e.must(a, e.request(name, from, long/2))
			old = e.swapped(a, old, e.request(name, from, long/2)).granted() // the name is in the state of a contended one
			var beside []driver.Grant
			if from != driver.Exclusive {
				beside = append(beside, e.must(b, e.request(name, from, long)))
			}
			w := e.swapped(a, old, e.request(name, to, long))
			for _, g := range beside {
				if to == driver.Exclusive {
					e.drain(a)
					w.pendingStill()
				}
				e.stands(b, g)
				e.release(b, g)
			}
			g := w.granted()
			e.above(g, old)
			if to == driver.Exclusive {
				e.busy(b, e.request(name, from, long))
			} else {
				e.busy(b, e.request(name, driver.Exclusive, long))
				e.release(b, e.must(b, e.request(name, to, long)))
			}
			e.release(a, g)
			e.free(b, name)
		}
	}
}

// swapOfEndedGrant requires that the request of a Swap is granted although the old grant was released or broken. A
// Swap must not release a later grant instead of the ended one.
func swapOfEndedGrant(e *env) {
	a, b := e.open(), e.open()
	e.swapper(a)
	for _, broken := range []bool{false, true} {
		if broken && e.g.Break != driver.BreakNow {
			continue
		}
		name := e.name()
		old := e.must(a, e.request(name, driver.Exclusive, long))
		if broken {
			e.shown(b, name, old.Token)
			if err := b.(driver.Breaker).Break(e.Context(), name, old.Token); err != nil {
				e.Fatalf("Break: %v", err)
			}
		} else {
			e.release(a, old)
		}
		w, err := e.swap(a, old, e.request(name, driver.Exclusive, long))
		e.code(a, err, driver.CodeNotHeld, "a Swap of a grant that has ended")
		g := w.granted()
		e.above(g, old)

		// The next holder waits first, so that the name is in the state of a contended one.
		next := e.wait(b, e.request(name, driver.Exclusive, long))
		e.release(a, g)
		g = next.granted()
		w, err = e.swap(a, old, e.request(name, driver.Exclusive, long))
		e.code(a, err, driver.CodeNotHeld, "a Swap of a grant that has ended")
		e.drain(a)
		w.pendingStill()
		e.stands(b, g)
		e.release(b, g)
		last := w.granted()
		e.above(last, g)
		e.release(a, last)
		e.free(a, name)
	}
}

// stands requires that a grant can be renewed.
func (e *env) stands(s driver.Store, g driver.Grant) {
	e.Helper()
	if g.TTL == driver.Forever {
		return
	}
	if a := s.Renew(e.Context(), []driver.Grant{g})[0]; a.Err != nil {
		e.Errorf("Renew of a grant that nothing has ended: %v", a.Err)
	}
}

// swapCancelledBefore calls Swap with a context that has ended. The Swap must either make the
// release or leave the grant standing, as it reports. It must leave nothing of its request.
func swapCancelledBefore(e *env) {
	s, name := e.open(), e.name()
	sw := e.swapper(s)
	g := e.must(s, e.request(name, driver.Exclusive, long))
	ctx, cancel := context.WithCancel(e.Context())
	cancel()
	r := e.request(name, driver.Exclusive, long)
	r.Wait = true
	var released []error
	_, err := sw.Swap(ctx, g, r, func(err error) { released = append(released, err) })
	if err == nil {
		e.Fatal("Swap with a context that has ended was granted")
	}
	if s.Classify(err) == driver.CodeUnknown {
		e.undone(s, r)
	}
	if len(released) > 1 {
		e.Errorf("Swap called released %d times", len(released))
	}
	switch err := s.Release(e.Context(), g, 0); {
	case len(released) == 0 && err != nil:
		e.Errorf("Swap did not release, and then Release: %v", err)
	case len(released) > 0 && released[0] == nil:
		e.code(s, err, driver.CodeNotHeld, "releasing a grant that Swap has released")
	}
	e.free(s, name)
}
