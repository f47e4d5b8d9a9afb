package drivertest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// tokensOfAWrongClock requires that tokens rise from grant to grant, and that a lease stands, also if the
// clock of one client is wrong.
func tokensOfAWrongClock(e *env) {
	if !e.h.Bubble {
		e.Skip("a client of this store cannot run in a bubble of testing/synctest")
	}
	name, before, after := e.name(), e.open(), e.open()
	last := e.must(before, e.request(name, driver.Exclusive, long))
	e.release(before, last)
	take := func(e *env, s driver.Store, client string) {
		e.Helper()
		g := e.must(s, e.request(name, driver.Exclusive, long))
		if g.Token <= last.Token {
			e.Errorf("%s got token %d after %d", client, g.Token, last.Token)
		}
		last = g
		e.release(s, g)
	}
	held := e.must(before, e.request(e.name(), driver.Exclusive, long))
	// In a bubble the clock starts in the year 2000.
	synctest.Test(e.T, func(t *testing.T) {
		inside := &env{suite: e.suite, T: t}
		defer inside.closeAll()
		s := inside.open()
		take(inside, s, "a client whose clock is in the year 2000")
		inside.busy(s, inside.request(held.Name, driver.Exclusive, long))
	})
	take(e, after, "the next client")
	e.busy(after, e.request(held.Name, driver.Exclusive, long))
	e.release(before, held)
}

// tokensOfAServerClock sets the store's clock ahead, back and behind. So the last token is ahead of the clock
// for a while. Two clients that stay open alternate, and a third one is new: tokens rise, and each lease
// has its whole TTL. The holder of a lease that the clock ends too early is notified.
func tokensOfAServerClock(e *env) {
	if e.h.SetClock == nil {
		e.Skip("the harness cannot set the store's clock")
	}
	a, b, name := e.open(), e.open(), e.name()
	e.Cleanup(func() { e.h.SetClock(e.T, 0) })
	last := e.must(a, e.request(name, driver.Exclusive, long))
	e.release(a, last)
	held := e.request(e.name(), driver.Exclusive, long)
	ended := e.must(a, held)
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour} {
		e.h.SetClock(e.T, ahead)
		if ahead > long {
			if next, err := e.try(b, e.request(held.Name, driver.Exclusive, long)); err == nil {
				e.above(next, ended)
				await(e, from(held).lost, "the holder of a lease that the store's clock has ended is not notified")
				e.release(b, next)
			}
		}
		for i, s := range []driver.Store{a, b, a, b, e.open(), a} {
			g := e.must(s, e.request(name, driver.Exclusive, long))
			if g.Token <= last.Last() {
				e.Errorf("the clock is %s ahead: client %d got token %d after %d: %s", ahead, i, g.Token, last.Last(), tokenRule)
			}
			e.busy(e.observer(), e.request(name, driver.Exclusive, long))
			w := e.queue(b, e.request(name, driver.Exclusive, long))
			e.release(s, g)
			last = w.granted()
			e.above(last, g)
			e.release(b, last)
		}
		if e.g.MaxTTL > 0 {
			short := e.name()
			g := e.must(a, e.request(short, driver.Exclusive, e.h.TTL))
			e.standsUntilItsEnd(b, g)
			// The core releases an expired grant, too. Of several servers one may still have it, and
			// would keep it for an hour after its clock is set back.
			if err := a.Release(e.Context(), g, 0); err != nil && a.Classify(err) != driver.CodeNotHeld {
				e.Errorf("the release of an expired grant: %v", err)
			}
		}
	}
	e.free(a, name)
	_ = a.Release(e.Context(), ended, 0) // as the core does
}

// pushWakesWaiter requires that a waiter is granted by its notification, and not by a poll.
// A busy machine may delay some waiters, but not most of them.
func pushWakesWaiter(e *env) {
	if e.g.Wake != driver.WakePush || e.g.Fallback < 500*time.Millisecond {
		e.Skip("a push cannot be distinguished from a poll")
	}
	const rounds = 7
	a, b, name, late := e.open(), e.open(), e.name(), 0
	for range rounds {
		g := e.must(a, e.request(name, driver.Exclusive, long))
		w := e.queue(b, e.request(name, driver.Exclusive, long))
		freed := time.Now()
		e.release(a, g)
		e.release(b, w.granted())
		if w.at.Sub(freed) > e.g.Fallback/2 {
			late++
		}
	}
	if late > rounds/2 {
		e.Errorf("%d of %d waiters were granted more than half of the declared fallback of %s after the release: it declares a push, and no waiter receives one",
			late, rounds, e.g.Fallback)
	}
}
