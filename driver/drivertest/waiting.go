package drivertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

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
			e.Fatalf("token %d after %d", got.Token, last)
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
	e.free(b, name) // connected: most of the TTL is left for the wait
	g := e.must(a, e.request(name, driver.Exclusive, e.h.TTL))
	w := e.wait(b, e.request(name, driver.Exclusive, long))
	next := w.granted()
	// Until the answer: see standsForItsTTL.
	if stood := w.at.Sub(g.SentAt.Time()); stood < g.TTL {
		e.Errorf("granted to another %s after the send, TTL %s", stood, g.TTL)
	}
	e.release(b, next)
	e.free(a, name)
}

// waitEndsByClose: the client that holds, and one that waits in front, go away.
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
		e.Fatal(err)
	}
	<-f.done
	e.code(front, f.err, driver.IsClosed, "waiting on a store that is closed")
	if err := holder.Close(e.Context()); err != nil {
		e.Fatal(err)
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

func cancelInTheMiddle(e *env) {
	name, first := e.name(), e.open()
	g := e.must(first, e.request(name, driver.Exclusive, long))
	var queue []*waiting
	for range 6 {
		queue = append(queue, e.queue(e.open(), e.request(name, driver.Exclusive, long)))
	}
	for _, i := range []int{0, 2, 3} { // the head, and two in the middle
		queue[i].leave()
	}
	e.release(first, g)
	for range 3 {
		select {
		case <-queue[1].done:
			e.release(queue[1].s, queue[1].granted())
			queue[1].done = nil
		case <-queue[4].done:
			e.release(queue[4].s, queue[4].granted())
			queue[4].done = nil
		case <-queue[5].done:
			e.release(queue[5].s, queue[5].granted())
			queue[5].done = nil
		case <-time.After(patience):
			e.Fatal("those who stayed were not all served")
		}
	}
	e.free(first, name)
}

// cancelAtAnyMoment cancels acquisitions between before they begin and after
// they have ended, while others take and release the name.
func cancelAtAnyMoment(e *env) {
	const workers, rounds = 8, 40
	name := e.name()
	var wg sync.WaitGroup
	for range workers {
		s := e.open()
		wg.Go(func() {
			for range rounds {
				w := e.wait(s, e.request(name, driver.Exclusive, long))
				t := time.AfterFunc(rand.N(3*time.Millisecond), w.cancel)
				<-w.done
				t.Stop()
				w.leave()
			}
		})
	}
	wg.Wait()
	e.free(e.open(), name)
}

func cancelledBefore(e *env) {
	s, name := e.open(), e.name()
	ctx, cancel := context.WithCancel(e.Context())
	cancel()
	r := e.request(name, driver.Exclusive, long)
	if g, err := s.Acquire(ctx, r); err == nil {
		e.release(s, g)
	} else if s.Classify(err) == driver.Unknown {
		e.undone(s, r)
	}
	e.free(s, name)
}
