package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Late disturbs the traffic of one client, as a bad network may: it delivers requests later, and loses answers.
type Late interface {
	// Hold holds back what the client sends over its present connections, until Deliver. Soon
	// after the first request was held back, its connection ends for the client, and not for
	// the store. New connections are not disturbed.
	Hold()
	// Held returns the number of connections that have ended in this way.
	Held() int
	// Deliver delivers what was held back. It returns when the store has executed it, or after
	// timeout.
	Deliver(timeout time.Duration)
	// LoseAnswer loses an answer to the client, as Harness.LoseAnswer does.
	LoseAnswer(after int)
}

// namedCase is a client whose requests are disturbed, another client, and a name that no other case uses.
type namedCase struct {
	*env
	s, other driver.Store // requests of s are disturbed
	name     string
	limit    int
	ttl      time.Duration
	req      driver.Request // of s
	got      driver.Grant   // of s
}

// named begins a case, and connects both clients.
func (e *env) named(s, other driver.Store) *namedCase {
	e.Helper()
	c := &namedCase{env: e, s: s, other: other, ttl: long}
	c.use(driver.Exclusive)
	return c
}

// use makes the case one of a new name and that limit, which the first grant of a name may fix. Both clients have
// used the name then.
func (c *namedCase) use(limit int) {
	c.Helper()
	c.name, c.limit = c.env.name(), limit
	for _, s := range []driver.Store{c.s, c.other} {
		c.release(s, c.must(s, c.request(c.name, limit, long)))
	}
}

// lateCase is one case of lateRequests: a request that was held back, and a grant that has ended since, or is
// to end.
type lateCase struct {
	*namedCase
	link  Late
	taken bool          // another client holds the name when the late request is delivered
	held  *atomic.Int64 // connections of all cases that have ended with a request held back
}

// deliver delivers what was held back.
func (c *lateCase) deliver() {
	c.held.Add(int64(c.link.Held()))
	c.link.Deliver(c.timeout())
}

// requested makes the request of the case.
func (c *namedCase) requested(wait bool) driver.Request {
	c.req = c.request(c.name, c.limit, c.ttl)
	c.req.Wait = wait
	return c.req
}

// resolved ends a request without a grant as the core does.
func (c *namedCase) resolved(err error) {
	c.Helper()
	if c.s.Classify(err) == driver.CodeUnknown {
		c.undone(c.s, c.req)
	}
}

// acquired makes the request while it is held back. It returns false if the client did not repeat it.
func (c *lateCase) acquired(wait bool) bool {
	c.Helper()
	c.link.Hold()
	ctx, cancel := context.WithTimeout(c.Context(), c.timeout())
	defer cancel()
	var err error
	if c.got, err = c.s.Acquire(ctx, c.requested(wait)); err != nil {
		c.resolved(err)
	}
	return err == nil
}

// waited lets the request wait behind another client, and calls before while it waits.
func (c *lateCase) waited(provisional bool, before func()) bool {
	c.Helper()
	held := c.must(c.other, c.request(c.name, driver.Exclusive, long))
	r := c.requested(true)
	r.Provisional = provisional
	w := c.queue(c.s, r)
	before()
	c.release(c.other, held)
	select {
	case <-w.done:
	case <-time.After(c.timeout()):
		c.Fatalf("waiting for %q, request %s: not granted within %s after its connection had ended", c.name, r.ID, c.timeout())
	}
	if w.err != nil {
		c.resolved(w.err)
		if c.g.Order == driver.OrderLongest { // the request has no position any more, so the name is free at once
			c.release(c.other, c.must(c.other, c.request(c.name, driver.Exclusive, long)))
		}
		return false
	}
	c.got = w.g
	return true
}

// renewedLate renews the grant while the renewal is held back.
func (c *lateCase) renewedLate() bool {
	c.link.Hold()
	ctx, cancel := context.WithTimeout(c.Context(), c.timeout())
	defer cancel()
	c.s.Renew(ctx, []driver.Grant{c.got})
	return true
}

// lateSteps are requests about a grant. Each returns false if there is no grant that can end. The
// request has been undone in that case.
var lateSteps = map[string]struct {
	possible func(*env) bool
	begin    func(*lateCase) bool
}{
	"try":  {begin: func(c *lateCase) bool { return c.acquired(false) }},
	"wait": {(*env).pushes, func(c *lateCase) bool { return c.acquired(true) }},
	"refresh of a queue entry": {
		possible: func(e *env) bool { return e.pushes() && e.h.EntryTTL > 0 },
		begin: func(c *lateCase) bool {
			return c.waited(false, func() {
				c.link.Hold()
				c.eventually("the client refreshes its queue entry", func() bool { return c.link.Held() > 0 },
					func() string { return "no request was held back" })
			})
		},
	},
	"confirmation after a wait": {(*env).pushes, func(c *lateCase) bool {
		return c.waited(false, func() { c.link.Hold() })
	}},
	"confirmation of a provisional grant": {(*env).pushes, func(c *lateCase) bool {
		return c.waited(true, func() {}) && c.renewedLate()
	}},
	"renewal": {begin: func(c *lateCase) bool {
		if c.got = c.must(c.s, c.requested(false)); c.got.TTL == driver.Forever {
			return true
		}
		return c.renewedLate()
	}},
}

// lateEnds are the ways in which a grant ends. Each ends the grant of a case, delivers what was held back, and
// requires what is particular to it.
var lateEnds = map[string]struct {
	possible func(*env) bool
	expires  bool // the grant has the short TTL of the harness
	end      func(*lateCase)
}{
	"release": {end: func(c *lateCase) { c.releasedInTheEnd(); c.delivered() }},
	"undo":    {end: func(c *lateCase) { c.undone(c.s, c.req); c.delivered() }},
	"release with keep": {
		possible: func(e *env) bool { return e.g.Linger },
		end: func(c *lateCase) {
			const keep = time.Second
			from := time.Now()
			if err := c.s.Release(c.Context(), c.got, keep); err != nil {
				c.releasedInTheEnd() // the grant was lost with its connection, or the answer was
				c.delivered()
				return
			}
			c.deliver()
			c.release(c.other, c.takeExpired(c.other, c.name))
			if stood := time.Since(from); stood < keep*9/10 {
				c.Errorf("stood for %s after its release, want %s", stood, keep)
			}
		},
	},
	"swap": {
		possible: (*env).swaps,
		end: func(c *lateCase) {
			w := c.swappedInTheEnd(nil)
			c.deliver()
			if w != nil {
				c.alone(c.s, w.granted(), 0)
			}
		},
	},
	"swap with a waiter": {
		possible: func(e *env) bool { return e.swaps() && e.g.Order == driver.OrderFIFO },
		end: func(c *lateCase) {
			first := c.queue(c.other, c.request(c.name, driver.Exclusive, long))
			w := c.swappedInTheEnd(first)
			c.deliver()
			if w == nil {
				c.alone(c.other, first.granted(), 0)
				return
			}
			c.alone(c.other, first.granted(), 1)
			c.alone(c.s, w.granted(), 0)
		},
	},
	"break": {
		possible: func(e *env) bool { return e.g.Break == driver.BreakNow },
		end: func(c *lateCase) {
			err := c.other.(driver.Breaker).Break(c.Context(), c.name, c.got.Token)
			if err != nil && c.other.Classify(err) != driver.CodeNotHeld {
				c.releasedInTheEnd() // the store cannot break it while its record is held back
			}
			c.delivered()
		},
	},
	"expiry": {
		possible: func(e *env) bool { return e.g.MaxTTL > 0 },
		expires:  true,
		end: func(c *lateCase) {
			c.release(c.other, c.takeExpired(c.other, c.name))
			c.releasedInTheEnd() // the core releases a lost grant, too
			c.delivered()
		},
	},
}

// releasedInTheEnd repeats the release until its outcome is known.
func (c *namedCase) releasedInTheEnd() {
	c.Helper()
	var err error
	c.eventually("the outcome of a release is known", func() bool {
		ctx, cancel := context.WithTimeout(c.Context(), time.Second)
		defer cancel()
		err = c.s.Release(ctx, c.got, 0)
		return err == nil || c.s.Classify(err) == driver.CodeNotHeld
	}, func() string { return fmt.Sprint(err) })
}

// swappedInTheEnd swaps the grant, and resolves each half without an outcome as the core does. If the outcome of the
// release was unknown and another request waits before the new one, swappedInTheEnd withdraws the new one: a store
// may go on to wait for it. It returns nil if the request was undone.
func (c *lateCase) swappedInTheEnd(first *waiting) *waiting {
	c.Helper()
	w, err, reported := c.swapOnce(c.Context(), c.s, c.got, c.request(c.name, driver.Exclusive, long))
	if reported && err == nil {
		return w
	}
	c.releasedInTheEnd()
	if reported && c.s.Classify(err) != driver.CodeUnknown {
		return w
	}
	if first != nil {
		first.granted()
		w.leave()
		return nil
	}
	await(c.env, w.done, "a Swap without an answer does not return")
	if w.err == nil {
		return w
	}
	if c.s.Classify(w.err) == driver.CodeUnknown {
		c.undone(c.s, w.r)
	}
	return nil
}

// delivered delivers what was held back, while the name is free or another client holds it. That client must
// keep it, and the ended grant must not appear.
func (c *lateCase) delivered() {
	c.Helper()
	var next driver.Grant
	taken := c.taken
	if taken {
		var err error
		next, err = c.try(c.other, c.request(c.name, driver.Exclusive, long))
		taken = err == nil // else the server has not noticed the end of a connection yet
	}
	c.deliver()
	if c.got.Token > 0 && c.got.TTL != driver.Forever {
		// The client of a session may be notified of a break later.
		c.soon("a grant that has ended cannot be renewed", func() (bool, string) {
			return c.s.Renew(c.Context(), []driver.Grant{c.got})[0].Err != nil, c.req.ID
		})
	}
	if taken {
		c.above(next, c.got)
		c.alone(c.other, next, 0)
	}
}

// alone requires that a grant stands beside no other, and before the given number of waiters. It releases the
// grant.
func (c *namedCase) alone(s driver.Store, g driver.Grant, waiters int) {
	c.Helper()
	third := c.open()
	c.busy(third, c.request(c.name, driver.Exclusive, long))
	if c.g.Visible != driver.VisibleAll {
		waiters = 0
	}
	c.inspected(third, fmt.Sprintf("request %s holds the name alone, before %d waiters", g.ID, waiters), func(st driver.State) bool {
		return len(st.Holders) == 1 && st.Holders[0].ID == g.ID && len(st.Waiters) == waiters
	})
	if g.TTL != driver.Forever {
		if a := s.Renew(c.Context(), []driver.Grant{g})[0]; a.Err != nil {
			c.Errorf("%q, request %s: Renew: %v", c.name, g.ID, a.Err)
		}
	}
	c.release(s, g)
}

// inspected requires that the state of the name is as wanted, if the store can be inspected. It repeats the
// inspection for a short time, because a server may not have noticed yet that a client has gone.
func (c *namedCase) inspected(s driver.Store, what string, wanted func(driver.State) bool) {
	c.Helper()
	i, ok := s.(driver.Inspector)
	if !ok {
		return
	}
	c.soon(what, func() (bool, string) {
		st, err := i.Inspect(c.Context(), c.name)
		return err == nil && wanted(st), fmt.Sprintf("%+v, %v", st, err)
	})
}

// soon polls until ok returns true, for much less time than a lease of a late request stands.
func (c *namedCase) soon(what string, ok func() (bool, string)) {
	c.Helper()
	limit := 5*time.Second + 25*c.h.TTL
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		is, state := ok()
		if is {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("%q: not so within %s after a disturbed request: %s (%s)", c.name, limit, what, state)
		}
	}
}

// nothing requires that the name is free, and has neither holders nor waiters.
func (c *namedCase) nothing() {
	c.Helper()
	c.soon("a name whose grants have ended is free", func() (bool, string) {
		g, err := c.try(c.other, c.request(c.name, driver.Exclusive, long))
		if err == nil {
			c.release(c.other, g)
		}
		return err == nil, fmt.Sprint(err)
	})
	c.inspected(c.other, "a name whose grants have ended has neither holders nor waiters", func(st driver.State) bool {
		return len(st.Holders)+len(st.Waiters) == 0
	})
}

// givenUp holds requests back, and returns a context that ends before their connection does. So the client cannot find
// the outcome by itself. The code of the context's cause is no answer of the store, nor is Harness.Cause.
func (c *lateCase) givenUp() (context.Context, context.CancelFunc) {
	c.link.Hold()
	cause := errors.Join(driver.Errorf(driver.CodeNotHeld, "an outer lock was lost"), c.h.Cause)
	return context.WithTimeoutCause(c.Context(), 20*time.Millisecond, cause)
}

// requestGivenUp gives up a request that is held back.
func (c *lateCase) requestGivenUp(wait bool) {
	c.Helper()
	ctx, cancel := c.givenUp()
	defer cancel()
	var err error
	if c.got, err = c.s.Acquire(ctx, c.requested(wait)); err != nil {
		c.resolved(err)
	} else {
		c.releasedInTheEnd()
	}
	c.delivered()
}

// swapGivenUp gives up a Swap that is held back. If the Swap has reported that it released the grant, that is so.
func (c *lateCase) swapGivenUp() {
	c.Helper()
	c.got = c.must(c.s, c.requested(false))
	ctx, cancel := c.givenUp()
	defer cancel()
	w, err, reported := c.swapOnce(ctx, c.s, c.got, c.request(c.name, driver.Exclusive, long))
	await(c.env, w.done, "a Swap whose context has ended does not return")
	if reported && err == nil {
		c.code(c.s, c.s.Release(c.Context(), c.got, 0), driver.CodeNotHeld, "releasing a grant that Swap has released")
	} else {
		c.releasedInTheEnd()
	}
	if w.err == nil {
		c.release(c.s, w.g)
	} else if c.s.Classify(w.err) == driver.CodeUnknown {
		c.undone(c.s, w.r)
	}
	c.delivered()
}

// lateRequests holds a request back and ends its grant in each way. Then the request is delivered.
// Nothing may appear, and no other grant may end.
func lateRequests(e *env) {
	if e.h.OpenLate == nil {
		e.Skip("the harness cannot hold requests back")
	}
	all := map[string]func(*lateCase){}
	for name, step := range lateSteps {
		if step.possible != nil && !step.possible(e) {
			continue
		}
		for way, end := range lateEnds {
			if end.possible != nil && !end.possible(e) {
				continue
			}
			all[name+", then "+way] = func(c *lateCase) {
				if end.expires {
					c.ttl = c.h.TTL
				}
				if step.begin(c) {
					end.end(c)
				} else {
					c.delivered()
				}
			}
		}
	}
	hold := func(c *lateCase) { c.got = c.must(c.s, c.requested(false)); c.link.Hold() }
	for _, limit := range e.limits() {
		for _, wait := range []bool{false, true} {
			if wait && !e.pushes() {
				continue
			}
			all[fmt.Sprintf("%s with limit %d, then undo", map[bool]string{false: "try", true: "wait"}[wait], limit)] = func(c *lateCase) {
				if c.use(limit); c.acquired(wait) {
					c.undone(c.s, c.req)
				}
				c.delivered()
			}
		}
	}
	all["release"] = func(c *lateCase) { hold(c); c.releasedInTheEnd(); c.delivered() }
	all["undo"] = func(c *lateCase) { hold(c); c.undone(c.s, c.req); c.delivered() }
	all["try that is given up"] = func(c *lateCase) { c.requestGivenUp(false) }
	if e.pushes() {
		all["wait that is given up"] = func(c *lateCase) { c.requestGivenUp(true) }
	}
	if e.swaps() {
		all["swap that is given up"] = (*lateCase).swapGivenUp
		all["swap"] = func(c *lateCase) {
			hold(c)
			if w := c.swappedInTheEnd(nil); w != nil {
				c.release(c.s, w.granted())
			}
			c.delivered()
		}
	}
	late := new(atomic.Int64)
	cases := map[string]func(*env){}
	for name, run := range all {
		for _, taken := range []bool{false, true} {
			cases[name+map[bool]string{true: ", and the name is taken"}[taken]] = func(e *env) {
				s, link := e.h.OpenLate(e.T)
				e.Cleanup(e.closeAll) // after a failure, before the harness closes the link
				c := &lateCase{namedCase: e.named(e.opened(s), e.open()), link: link, taken: taken, held: late}
				run(c)
				c.nothing()
			}
		}
	}
	e.inTurns(6, cases)
	if late.Load() == 0 && !e.Failed() {
		e.Error("no request was held back")
	}
}

// inTurns runs the cases, n at a time. They mostly wait, so there may be more of them than go test runs in parallel.
func (e *env) inTurns(n int, cases map[string]func(*env)) {
	turns := make(chan struct{}, n)
	var wg sync.WaitGroup
	for name, run := range cases {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if e.Failed() {
				return // the other cases would wait for as long
			}
			e.Run(name, func(t *testing.T) {
				own := &env{suite: e.suite, T: t}
				t.Cleanup(own.closeAll)
				run(own)
				own.closeAll()
			})
		})
	}
	wg.Wait()
}
