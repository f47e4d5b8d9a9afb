package drivertest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// order requires that waiters are granted in the order in which they queued, with rising tokens.
func order(e *env) {
	if e.g.Order != driver.OrderFIFO {
		e.Skip("the store declares no order")
	}
	const n = 12
	name, first := e.name(), e.open()
	g := e.must(first, e.request(name, driver.Exclusive, long))
	var queue []*waiting
	for range n {
		queue = append(queue, e.queue(e.open(), e.request(name, driver.Exclusive, long)))
	}
	e.release(first, g)
	last := g.Token
	for i, w := range queue {
		got := w.granted()
		for _, later := range queue[i+1:] {
			later.pendingStill()
		}
		if got.Token <= last {
			e.Fatalf("%q, request %s: token %d after %d: %s", name, got.ID, got.Token, last, tokenRule)
		}
		last = got.Token
		e.release(w.s, got)
	}
	e.free(first, name)
}

func waitEndsByRelease(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	for range 20 {
		g := e.must(a, e.request(name, driver.Exclusive, long))
		w := e.queue(b, e.request(name, driver.Exclusive, long))
		e.release(a, g)
		e.release(b, w.granted())
	}
	e.free(a, name)
}

func waitEndsByExpiry(e *env) {
	e.leases()
	a, b, name := e.open(), e.open(), e.name()
	e.free(b, name) // b connects now, so that most of the TTL is left for the wait
	g := e.must(a, e.request(name, driver.Exclusive, e.h.TTL))
	w := e.wait(b, e.request(name, driver.Exclusive, long))
	next := w.granted()
	// The time ends with the answer: see standsUntilItsEnd.
	if stood := w.at.Sub(g.SentAt.Time()); stood < g.TTL {
		e.Errorf("%q: request %s was granted %s after request %s set the TTL of %s: no other grant begins before SentAt + TTL", name, w.r.ID, stood, g.ID, g.TTL)
	}
	e.release(b, next)
	e.free(a, name)
}

// waitEndsByClose requires that the next waiter is granted when the clients of the holder and
// of the first waiter are closed.
func waitEndsByClose(e *env) {
	if e.g.Crash == driver.CrashFreesAfterTTL {
		e.Skip("grants outlive their client")
	}
	name := e.name()
	holder, front, back := e.open(), e.open(), e.open()
	e.must(holder, e.request(name, driver.Exclusive, long))
	f := e.queue(front, e.request(name, driver.Exclusive, long))
	b := e.queue(back, e.request(name, driver.Exclusive, long))
	if err := front.Close(e.Context()); err != nil {
		e.Fatalf("Close: %v", err)
	}
	<-f.done
	e.code(front, f.err, driver.CodeClosed, "waiting on a closed store")
	if err := holder.Close(e.Context()); err != nil {
		e.Fatalf("Close: %v", err)
	}
	e.release(back, b.granted())
}

func cancelledWait(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	g := e.must(a, e.request(name, driver.Exclusive, long))
	e.queue(b, e.request(name, driver.Exclusive, long)).leave()
	e.release(a, g)
	e.free(a, name)
}

// cancelInTheMiddle cancels the head of the queue and two waiters in the middle of it. No
// waiter is granted before the holder releases, and no two of the others hold the name
// together.
func cancelInTheMiddle(e *env) {
	name, first := e.name(), e.open()
	g := e.must(first, e.request(name, driver.Exclusive, long))
	var queue []*waiting
	for range 6 {
		queue = append(queue, e.queue(e.open(), e.request(name, driver.Exclusive, long)))
	}
	// pending requires that the rest of the queue still waits, after each client has handled what the
	// store had sent to it.
	pending := func() {
		e.Helper()
		for _, w := range queue {
			if !w.left {
				e.drain(w.s)
			}
		}
		for _, w := range queue {
			if !w.left {
				w.pendingStill()
			}
		}
	}
	for _, i := range []int{0, 2, 3} { // the head, and two in the middle
		queue[i].leave()
		pending()
	}
	e.release(first, g)
	for range 3 {
		var next *waiting
		select {
		case <-queue[1].done:
			next = queue[1]
		case <-queue[4].done:
			next = queue[4]
		case <-queue[5].done:
			next = queue[5]
		case <-time.After(e.timeout()):
			e.Fatalf("%q is free, and none of the other waiters was granted within %s: a freed name is granted to its next waiter", name, e.timeout())
		}
		got := next.granted()
		next.left, next.done = true, nil // nil is never ready in the select above
		pending()
		e.release(next.s, got)
	}
	e.free(first, name)
}

// drain returns when the client has handled all messages that the store sent to it before the
// call, if the store sends in order. It waits for a second name until that name is released.
func (e *env) drain(s driver.Store) {
	e.Helper()
	other, name := e.observer(), e.name()
	g := e.must(other, e.request(name, driver.Exclusive, long))
	w := e.queue(s, e.request(name, driver.Exclusive, long))
	e.release(other, g)
	e.release(s, w.granted())
}

// cancelBesideAHolder cancels waits at random moments while one client holds the name: none of
// them may be granted.
func cancelBesideAHolder(e *env) {
	name, first := e.name(), e.open()
	g := e.must(first, e.request(name, driver.Exclusive, long))
	e.cancelWaits(name, 6, 15, 20*time.Millisecond, func(got driver.Grant) {
		e.Errorf("%q, request %s: token %d granted beside request %s with token %d: %s", name, got.ID, got.Token, g.ID, g.Token, limitText)
	})
	e.busy(e.open(), e.request(name, driver.Exclusive, long))
	e.release(first, g)
	e.free(first, name)
}

// cancelAtAnyMoment cancels acquisitions at random moments while other clients acquire and
// release the name.
func cancelAtAnyMoment(e *env) {
	name := e.name()
	var holders atomic.Int32
	e.cancelWaits(name, 8, 40, 3*time.Millisecond, func(got driver.Grant) {
		if n := holders.Add(1); n != 1 {
			e.Errorf("%q, request %s: token %d is one of %d exclusive grants at once: %s", name, got.ID, got.Token, n, limitText)
		}
		runtime.Gosched()
		holders.Add(-1)
	})
	e.free(e.open(), name)
}

// cancelWaits lets workers with a client each wait for a name, and cancels each wait after a
// random time below longest. It calls granted for each grant before it is released.
func (e *env) cancelWaits(name string, workers, rounds int, longest time.Duration, granted func(driver.Grant)) {
	var wg sync.WaitGroup
	for range workers {
		s := e.open()
		wg.Go(func() {
			for range rounds {
				w := e.wait(s, e.request(name, driver.Exclusive, long))
				t := time.AfterFunc(rand.N(longest), w.cancel)
				<-w.done
				t.Stop()
				if w.err == nil {
					granted(w.g)
				}
				w.leave()
			}
		})
	}
	wg.Wait()
}

// causes is an error of a type that cannot be compared, like a list of invalid fields.
type causes []string

func (c causes) Error() string { return strings.Join(c, ", ") }

// cancelledBefore makes a request with a context that has ended already. The store may grant it
// or return an error, and nothing is left of it afterwards.
func cancelledBefore(e *env) {
	s, name := e.open(), e.name()
	ctx, cancel := context.WithCancelCause(e.Context())
	cancel(causes{"the caller has left"})
	r := e.request(name, driver.Exclusive, long)
	if g, err := s.Acquire(ctx, r); err == nil {
		e.release(s, g)
	} else if s.Classify(err) == driver.CodeUnknown {
		e.undone(s, r)
	}
	e.free(s, name)
}
