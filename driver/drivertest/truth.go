package drivertest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// answerLost lets the store execute a request and loses the answer. If the client reports a
// known outcome, nothing may be left behind. If it reports an unknown one, nothing may be left
// after the undo. A request may have several answers, so each of the first four is lost in turn.
func answerLost(e *env) {
	if e.h.LoseAnswer == nil && e.h.Delay == nil {
		e.Skip("the harness can neither lose nor delay an answer")
	}
	for _, limit := range e.limits() {
		for after := range 4 {
			e.loseAnswer(limit, false, after)
			if e.g.Wake == driver.WakePush {
				e.loseAnswer(limit, true, after)
			}
			if e.h.LoseAnswer == nil {
				break // acquireUnanswered then ignores after
			}
		}
	}
}

// acquireUnanswered makes a request and loses one of its answers. after is the number of answers
// that arrive before the lost one. If the harness cannot lose an answer, every answer arrives after
// the end of the request's context.
func (e *env) acquireUnanswered(s driver.Store, r driver.Request, after int) (driver.Grant, error) {
	e.Helper()
	if e.h.LoseAnswer != nil {
		e.h.LoseAnswer(e.T, after)
		return s.Acquire(e.Context(), r)
	}
	ctx, cancel := context.WithTimeout(e.Context(), 100*time.Millisecond)
	defer cancel()
	e.h.Delay(e.T, 400*time.Millisecond)
	defer e.h.Delay(e.T, 0)
	return s.Acquire(ctx, r)
}

// loseAnswer loses an answer to a request for a free name, and ends the request as the core does.
// Then two clients must get the name.
func (e *env) loseAnswer(limit int, wait bool, after int) {
	e.Helper()
	s, other, name := e.open(), e.open(), e.name()
	e.free(s, name) // connects the client
	r := e.request(name, limit, long)
	r.Wait = wait
	g, err := e.acquireUnanswered(s, r, after)
	what := "released"
	if err == nil {
		// The store has found the outcome without the lost answer, or has sent fewer
		// answers. In that case the answer to the release may be lost.
		if failed := s.Release(e.Context(), g, 0); failed != nil {
			e.undone(s, r)
			what = "undone after a release (" + failed.Error() + ")"
		}
	} else if code := s.Classify(err); code == driver.CodeUnknown {
		e.undone(s, r)
		what = "undone"
	} else {
		what = "called " + code.String()
	}
	for _, next := range []driver.Store{other, s} {
		// One of these requests may lose its answer, if the first one had too few answers.
		r := e.request(name, driver.Exclusive, long)
		again, failed := next.Acquire(e.Context(), r)
		for range 8 {
			if failed == nil || next.Classify(failed) != driver.CodeUnknown && next.Classify(failed) != driver.CodeUnavailable {
				break
			}
			e.undone(next, r)
			r = e.request(name, driver.Exclusive, long)
			again, failed = next.Acquire(e.Context(), r)
		}
		if failed != nil {
			e.Fatalf("limit %d, wait %t: a request (%v) was %s, and the next one still gets %v", limit, wait, err, what, failed)
		}
		if next.Release(e.Context(), again, 0) != nil {
			e.undone(next, r)
		}
	}
}

// tokensOfAWrongClock requires that tokens rise from grant to grant, also if the clock of one
// client is wrong.
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
	// In a bubble the clock starts in the year 2000.
	synctest.Test(e.T, func(t *testing.T) {
		inside := &env{suite: e.suite, T: t}
		defer inside.closeAll()
		take(inside, inside.open(), "a client whose clock is in the year 2000")
	})
	take(e, after, "the next client")
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
