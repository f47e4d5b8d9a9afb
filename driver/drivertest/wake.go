package drivertest

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// pushTime is how long a test without a fallback waits for a notification. It is shorter than driver.PositionTime, after
// which a waiter tries again by itself. A machine may stand still for that long, so such a test has three tries.
const pushTime = 7 * time.Second

// pushed returns a test with up to three tries. In one of them, every waiter must be granted.
// After each try it releases the remaining grants.
func pushed(try func(e *env) []*waiting) func(*env) {
	return func(e *env) {
		var last string
		for range 3 {
			own := &env{suite: e.suite, T: e.T}
			e.Cleanup(own.closeAll)
			late := own.late(try(own))
			for _, h := range own.held {
				own.release(h.s, h.g)
			}
			own.closeAll()
			if late == "" {
				return
			}
			last = late
		}
		e.Errorf("%s, in each of three tries: a waiter that receives no notification does not poll", last)
	}
}

// late waits for the grants of waiters, releases them, and describes the first waiter that was
// not granted in time. A waiter whose request failed is late: on a busy machine its queue entry
// may expire, since it is not renewed.
func (e *env) late(waiters []*waiting) (what string) {
	e.Helper()
	deadline := time.After(pushTime)
	for i, w := range waiters {
		select {
		case <-w.done:
			if w.err == nil {
				continue
			}
			what = fmt.Sprintf("waiting for %q: %v", w.r.Name, w.err)
		case <-deadline:
			what = fmt.Sprintf("waiter %d of %d of %q was not granted within %s", i+1, len(waiters), w.r.Name, pushTime)
		}
		break
	}
	for _, w := range waiters {
		select {
		case <-w.done:
			if w.err != nil {
				if w.s.Classify(w.err) == driver.CodeUnknown {
					e.undone(w.s, w.r)
				}
				continue
			}
		default:
		}
		w.leave()
	}
	return what
}

// openSilent opens a client whose waiters do not poll.
func (e *env) openSilent() driver.Store {
	e.Helper()
	return e.opened(e.h.OpenWithoutFallback(e.T, ""))
}

// wakesWithoutFallback requires that every way in which a name can become free notifies the
// next waiter.
func wakesWithoutFallback(e *env) {
	if e.g.Wake != driver.WakePush {
		e.Skip("the store declares no push")
	}
	if e.h.OpenWithoutFallback == nil {
		e.Skip("the harness cannot switch the fallback off")
	}
	all := map[string]func(*env){}
	exclusive := func(end func(e *env, s driver.Store, r driver.Request, g driver.Grant)) func(e *env) []*waiting {
		return func(e *env) []*waiting {
			s, name := e.open(), e.name()
			r := e.request(name, driver.Exclusive, long)
			g := e.must(s, r)
			w := e.queue(e.openSilent(), e.request(name, driver.Exclusive, long))
			end(e, s, r, g)
			return []*waiting{w}
		}
	}
	all["release"] = pushed(exclusive(func(e *env, s driver.Store, _ driver.Request, g driver.Grant) { e.release(s, g) }))
	all["undo of a grant"] = pushed(exclusive(func(e *env, s driver.Store, r driver.Request, _ driver.Grant) { e.undone(s, r) }))
	if e.g.Break == driver.BreakNow {
		all["break"] = pushed(exclusive(func(e *env, _ driver.Store, _ driver.Request, g driver.Grant) {
			if err := e.open().(driver.Breaker).Break(e.Context(), g.Name, g.Token); err != nil {
				e.Fatalf("Break(%q, %d): %v", g.Name, g.Token, err)
			}
		}))
	}
	if e.g.Crash != driver.CrashFreesAfterTTL {
		all["close of the holder's client"] = pushed(exclusive(func(e *env, s driver.Store, _ driver.Request, g driver.Grant) {
			if err := s.Close(e.Context()); err != nil {
				e.Fatalf("Close: %v", err)
			}
		}))
	}
	for _, limit := range e.limits() {
		if limit == driver.Exclusive || !e.canFill(limit) {
			continue
		}
		all[fmt.Sprintf("limit %d, all that it admits", limit)] = pushed(func(e *env) []*waiting {
			s, name := e.open(), e.name()
			held := e.full(s, name, limit)
			var waiters []*waiting
			for range min(limit, 3) {
				waiters = append(waiters, e.queue(e.openSilent(), e.request(name, limit, long)))
			}
			e.releaseAll(s, held)
			return waiters
		})
		if !e.g.Mixed || e.g.Order != driver.OrderFIFO {
			continue
		}
		// The last of several holders releases, and an exclusive waiter is next.
		all[fmt.Sprintf("limit %d, the last holder", limit)] = pushed(func(e *env) []*waiting {
			a, b, name := e.open(), e.open(), e.name()
			one, two := e.must(a, e.request(name, limit, long)), e.must(b, e.request(name, limit, long))
			w := e.queue(e.openSilent(), e.request(name, driver.Exclusive, long))
			e.release(a, one)
			e.release(b, two)
			return []*waiting{w}
		})
		// An exclusive waiter gives up, and the waiters behind it may join the holder.
		for how, end := range map[string]func(*waiting){
			"withdrawn": (*waiting).leave,
			"undone": func(w *waiting) {
				w.cancel()
				<-w.done
				w.e.undone(w.s, w.r)
			},
		} {
			all[fmt.Sprintf("limit %d, an exclusive waiter in front is %s", limit, how)] = pushed(func(e *env) []*waiting {
				s, name := e.open(), e.name()
				e.held = append(e.held, held{s, e.must(s, e.request(name, limit, long))})
				front := e.queue(e.open(), e.request(name, driver.Exclusive, long))
				waiters := []*waiting{e.queue(e.openSilent(), e.request(name, limit, long))}
				if limit > 2 {
					waiters = append(waiters, e.queue(e.openSilent(), e.request(name, limit, long)))
				}
				end(front)
				return waiters
			})
		}
	}
	if e.g.Order == driver.OrderFIFO {
		// The first waiter gives up before the holder releases, so the second one is next.
		all["release after the first waiter was withdrawn"] = pushed(func(e *env) []*waiting {
			s, name := e.open(), e.name()
			g := e.must(s, e.request(name, driver.Exclusive, long))
			front := e.queue(e.openSilent(), e.request(name, driver.Exclusive, long))
			back := e.queue(e.openSilent(), e.request(name, driver.Exclusive, long))
			front.leave()
			e.release(s, g)
			return []*waiting{back}
		})
	}
	e.inTurns(len(all), all)
}

// wakesAfterReconnect requires that a client is notified after its connections have ended, for a request that waited
// then, and for one that waits later.
func wakesAfterReconnect(e *env) {
	if e.g.Wake != driver.WakePush {
		e.Skip("the store declares no push")
	}
	if e.h.OpenWithoutFallback == nil || e.h.Disconnect == nil {
		e.Skip("the harness cannot switch the fallback off, or end connections")
	}
	pushed(func(e *env) []*waiting {
		holder, waiter, kept := e.open(), e.openSilent(), e.name()
		held := e.request(kept, driver.Exclusive, long)
		e.must(holder, held)
		other := e.queue(waiter, e.request(kept, driver.Exclusive, long))
		e.h.Disconnect(e.T)
		// A client that is not connected yet returns an error; the request is repeated.
		name := e.name()
		var g driver.Grant
		var err error
		e.eventually("the holder's client is connected again", func() bool {
			g, err = e.try(holder, e.request(name, driver.Exclusive, long))
			return err == nil
		}, func() string { return fmt.Sprint(err) })
		var w *waiting
		e.eventually("the waiter's client is connected again", func() bool {
			w = e.wait(waiter, e.request(name, driver.Exclusive, long))
			select {
			case <-from(w.r).queued:
				return true
			case <-w.done:
				if err = w.err; err != nil && w.s.Classify(err) == driver.CodeUnknown {
					e.undone(waiter, w.r)
				}
				return false
			case <-time.After(e.timeout()):
				e.Fatalf("the store did not report a queue entry for %q", name)
				return false
			}
		}, func() string { return fmt.Sprint(err) })
		e.release(holder, g)
		e.undone(holder, held)
		waiters := []*waiting{w, other}
		select {
		case <-other.done:
			if other.err != nil { // the wait has ended with its connection, or with the holder's
				e.undone(waiter, other.r)
				waiters = waiters[:1]
			}
		case <-time.After(pushTime):
		}
		return waiters
	})(e)
}

// forgedMessagesOnlyWake requires that messages of another program grant no lock, and end none.
func forgedMessagesOnlyWake(e *env) {
	if e.h.Forge == nil {
		e.Skip("the harness cannot send messages of another program")
	}
	a, b, name := e.open(), e.open(), e.name()
	held, waits := e.request(name, driver.Exclusive, long), e.request(name, driver.Exclusive, long)
	waits.Provisional = true
	g := e.must(a, held)
	w := e.queue(b, waits)
	e.h.Forge(e.T, name, []string{held.ID, waits.ID, "", "unknown"}, g.Token)
	e.drain(a)
	e.drain(b)
	w.pendingStill()
	e.stands(a, g)
	select {
	case cause := <-from(held).lost:
		e.Errorf("after forged messages the grant is reported as lost: %s", cause)
	default:
	}
	e.release(a, g)
	next := w.granted()
	e.above(next, g)
	e.release(b, next)
	e.free(a, name)
}

// waitOutlivesEntry requires that a waiter keeps its queue entry, and its position, for longer
// than an entry stands without renewal.
func waitOutlivesEntry(e *env) {
	if e.g.Wake != driver.WakePush {
		e.Skip("a waiter has no queue entry")
	}
	holder, name := e.open(), e.name()
	g := e.must(holder, e.request(name, driver.Exclusive, long))
	var queue []*waiting
	for range 2 {
		queue = append(queue, e.queue(e.open(), e.request(name, driver.Exclusive, e.h.TTL)))
	}
	time.Sleep(2*max(e.h.EntryTTL, e.h.TTL) + e.h.TTL)
	late := e.open()
	e.busy(late, e.request(name, driver.Exclusive, long)) // the request removes entries that have expired
	queue = append(queue, e.queue(late, e.request(name, driver.Exclusive, e.h.TTL)))
	e.release(holder, g)
	last := g.Token
	for i := range queue {
		var w *waiting
		if e.g.Order == driver.OrderFIFO {
			w = queue[i]
		} else {
			select {
			case <-queue[0].done:
				w = queue[0]
			case <-queue[1].done:
				w = queue[1]
			case <-queue[2].done:
				w = queue[2]
			case <-time.After(e.timeout()):
				e.Fatalf("%d of %d waiters of %q were not granted within %s", len(queue)-i, len(queue), name, e.timeout())
			}
		}
		got := w.granted()
		w.done = nil
		if got.Token <= last {
			e.Errorf("%q: waiter %d was granted token %d after %d, which a later waiter had", name, i+1, got.Token, last)
		}
		last = max(last, got.Token)
		_ = w.s.Release(e.Context(), got, 0) // the grant may have expired on a slow machine
	}
}
