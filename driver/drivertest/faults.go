package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Steps disturbs single requests of one client, between the code of the store and the server.
type Steps struct {
	// Open opens a client like Harness.Open. It calls step for each request that may change something at the
	// server, and step calls send for each time that the server gets the request. send returns the server's
	// answer, and step the answer that the client gets.
	Open func(t testing.TB, step func(send func() error) error) driver.Store
	// Faults are steps that disturb a request: it is sent twice, the server is too busy for it, or its answer
	// is lost.
	Faults map[string]func(send func() error) error
	// Late is the client's error for a request that the server gets later, and twice; nil if it cannot.
	Late error
}

// Refusal is a reason for which the server refuses requests of one client, such as a missing right.
type Refusal struct {
	Name       string
	Begin, End func(t testing.TB)
	// Unnoticed: every call may succeed all the same.
	Unnoticed bool
	// Succeed has the calls that must succeed all the same, such as "release": each whose name begins so. The name ""
	// stands for every call.
	Succeed []string
}

// faultCase is one cell of the matrix of faults: a call of a client whose requests are disturbed.
type faultCase struct {
	*namedCase
	faultCall
	ends    bool          // the fault may end the client's connection
	refuses bool          // the fault is a refusal of the server
	spares  bool          // the call must succeed all the same
	unsent  bool          // the server did not get the request that was disturbed
	waits   bool          // another client waits behind the client's grant
	behind  *waiting      // the wait of that client
	beside  *driver.Grant // a grant of the other client that stands all the time; nil if there is none
	taken   driver.Grant  // a grant of the other client that is in the way, and its requester
	holder  *requester
	w       *waiting // the client's wait
	err     error    // of the call, and of the release by a Swap
	swapped bool     // the Swap has reported the outcome of the release
	last    uint64   // the largest token of the name
	late    func()   // sends the requests that were held back; nil if there are none
}

// faultCall is a call. begin prepares it, do makes it while a request is disturbed, and end resolves it as the core
// does.
type faultCall struct {
	possible       func(*env) bool
	held           bool // the client holds the name before
	begin, do, end func(*faultCase)
}

var faultCalls = map[string]faultCall{
	"try": {
		do:  func(c *faultCase) { c.got, c.err = c.s.Acquire(c.Context(), c.requested(false)) },
		end: (*faultCase).acquired,
	},
	"wait": {
		possible: (*env).pushes,
		do:       func(c *faultCase) { c.got, c.err = c.s.Acquire(c.Context(), c.requested(true)) },
		end:      (*faultCase).acquired,
	},
	"wait behind a holder": {
		possible: (*env).pushes,
		begin:    (*faultCase).hold,
		do:       func(c *faultCase) { c.starts(); c.release(c.other, c.taken) },
		end:      (*faultCase).waited,
	},
	"wait for an expiry": {
		possible: func(e *env) bool { return e.pushes() && e.g.MaxTTL > 0 && e.g.LeftoversExpire && !e.h.Session },
		begin:    func(c *faultCase) { c.sees(c.must(c.other, c.request(c.name, driver.Exclusive, c.h.TTL))) },
		do:       (*faultCase).starts,
		end:      (*faultCase).waited,
	},
	"end of a wait": {
		possible: (*env).pushes,
		begin:    func(c *faultCase) { c.hold(); c.w = c.queue(c.s, c.requested(true)) },
		do:       func(c *faultCase) { c.w.cancel(); await(c.env, c.w.done, "a wait does not end with its context") },
		end: func(c *faultCase) {
			c.failed("a wait whose context has ended", c.w.err, driver.CodeWithdrawn)
			c.resolved(c.w.err)
			c.stands(c.other, c.taken)
			c.release(c.other, c.taken)
		},
	},
	"renewal": {
		held:     true,
		possible: func(e *env) bool { return e.g.MaxTTL > 0 },
		do:       func(c *faultCase) { c.err = c.s.Renew(c.Context(), []driver.Grant{c.got})[0].Err },
		end: func(c *faultCase) {
			if c.err != nil {
				c.failed("a renewal", c.err)
			}
			c.stands(c.s, c.got)
			c.released(c.s.Release(c.Context(), c.got, 0), false)
		},
	},
	"release": {
		held: true,
		do:   func(c *faultCase) { c.err = c.s.Release(c.Context(), c.got, 0) },
		end:  func(c *faultCase) { c.released(c.err, true) },
	},
	"release with keep": {
		held:     true,
		possible: func(e *env) bool { return e.g.Linger },
		do:       func(c *faultCase) { c.err = c.s.Release(c.Context(), c.got, 10*time.Millisecond) },
		end:      func(c *faultCase) { c.released(c.err, true) },
	},
	"undo": {
		held: true,
		do:   func(c *faultCase) { c.err = c.s.Undo(c.Context(), c.req) },
		end: func(c *faultCase) {
			if c.err != nil {
				c.failed("an undo", c.err)
			}
			c.undone(c.s, c.req)
			c.code(c.s, c.s.Release(c.Context(), c.got, 0), driver.CodeNotHeld, "releasing an undone grant")
		},
	},
	"break": {
		possible: func(e *env) bool { return e.g.Break == driver.BreakNow },
		begin:    (*faultCase).hold,
		do:       func(c *faultCase) { c.err = c.s.(driver.Breaker).Break(c.Context(), c.name, c.taken.Token) },
		end: func(c *faultCase) {
			if c.err != nil {
				c.failed("a break", c.err, driver.CodeNotHeld)
			}
			if c.changedNothing(c.err) {
				c.stands(c.other, c.taken)
			}
			c.finally(c.s, "a break", func(ctx context.Context) error {
				return c.s.(driver.Breaker).Break(ctx, c.name, c.taken.Token)
			})
			await(c.env, c.holder.lost, "the holder of a broken grant is not notified")
			_ = c.other.Release(c.Context(), c.taken, 0) // as the core does
		},
	},
	"swap": {
		held:     true,
		possible: (*env).swaps,
		begin: func(c *faultCase) { // the state of a name for which clients contend
			c.got = c.sees(c.env.swapped(c.s, c.got, c.requested(true)).granted())
		},
		do: func(c *faultCase) {
			r := c.request(c.name, c.limit, c.ttl)
			r.Provisional = c.waits && !c.spares
			c.w, c.err, c.swapped = c.swapOnce(c.Context(), c.s, c.got, r)
		},
		end: func(c *faultCase) {
			if !c.swapped {
				await(c.env, c.w.done, "a Swap without the outcome of its release does not return")
				if c.spares {
					c.Errorf("a swap: %v", c.w.err)
				}
				c.stands(c.s, c.got)
				c.err = c.s.Release(c.Context(), c.got, 0)
			}
			c.released(c.err, c.swapped)
			if c.behind != nil {
				select {
				case <-c.w.done: // without an order, or with an error
				case <-c.behind.done:
					c.next()
				case <-time.After(c.timeout()):
					c.Fatal("no waiter is granted after a swap")
				}
			}
			c.req = c.w.r
			c.waited()
		},
	},
}

func (e *env) pushes() bool { return e.g.Wake == driver.WakePush }

// sees requires that a grant of the name has a larger token than all before.
func (c *faultCase) sees(g driver.Grant) driver.Grant {
	c.Helper()
	if g.Token <= c.last {
		c.Errorf("token %d after %d: %s", g.Token, c.last, tokenRule)
	}
	c.last = max(c.last, g.Last())
	return g
}

// hold gives the name to the other client.
func (c *faultCase) hold() {
	c.Helper()
	r := c.request(c.name, driver.Exclusive, long)
	c.taken, c.holder = c.sees(c.must(c.other, r)), from(r)
}

// starts lets the client wait.
func (c *faultCase) starts() {
	c.Helper()
	c.w = c.wait(c.s, c.requested(true))
	select {
	case <-from(c.req).queued:
	case <-c.w.done:
	case <-time.After(c.timeout()):
		c.Fatal("a request has neither a queue entry nor an answer")
	}
}

// mayEnd reports whether the fault may have ended the grants of the client.
func (c *faultCase) mayEnd() bool { return c.ends && c.g.Crash == driver.CrashFreesAtOnce }

// changedNothing reports whether a call has certainly changed nothing.
func (c *faultCase) changedNothing(err error) bool {
	return err != nil && (c.unsent || c.refuses && c.s.Classify(err) == driver.CodeRefused)
}

// failed requires that an error has a code for the call that was disturbed.
func (c *faultCase) failed(what string, err error, also ...driver.Code) {
	c.Helper()
	allowed := also
	if !c.spares {
		allowed = append(allowed, driver.CodeUnknown, driver.CodeRefused)
	}
	if !c.refuses {
		allowed = append(allowed, driver.CodeUnavailable)
	}
	if c.mayEnd() {
		allowed = append(allowed, driver.CodeNotHeld)
	}
	if err == nil {
		c.Errorf("%s: no error, want one of %v", what, allowed)
		return
	}
	for _, code := range allowed {
		if c.s.Classify(err) == code {
			return
		}
	}
	c.Errorf("%s: %v (%v), want one of %v", what, err, c.s.Classify(err), allowed)
}

// acquired ends a request of the client and its grant.
func (c *faultCase) acquired() {
	c.Helper()
	if c.err != nil {
		c.failed("a request", c.err)
		c.resolved(c.err)
		return
	}
	if !c.got.Provisional {
		c.checkGrant(c.req, c.got)
	}
	c.sees(c.got)
	c.stands(c.s, c.got)
	c.released(c.s.Release(c.Context(), c.got, 0), false)
}

// waited is acquired for a request that waits.
func (c *faultCase) waited() {
	c.Helper()
	await(c.env, c.w.done, "a wait has no end although the name is free")
	c.got, c.err = c.w.g, c.w.err
	c.acquired()
}

// finally repeats a call until the grant has ended, and reports whether the last call has ended it.
func (c *faultCase) finally(s driver.Store, what string, call func(context.Context) error) bool {
	c.Helper()
	var err error
	c.eventually(what+" has an outcome", func() bool {
		ctx, cancel := context.WithTimeout(c.Context(), c.timeout())
		defer cancel()
		err = call(ctx)
		return err == nil || s.Classify(err) == driver.CodeNotHeld
	}, func() string { return fmt.Sprint(err) })
	return err == nil
}

// released resolves a release with an outcome. disturbed reports that the fault may have hit the release.
func (c *faultCase) released(err error, disturbed bool) {
	c.Helper()
	if err != nil && c.s.Classify(err) != driver.CodeNotHeld {
		c.failed("a release", err)
	}
	stood := err == nil
	if !stood {
		stood = c.finally(c.s, "a release", func(ctx context.Context) error { return c.s.Release(ctx, c.got, 0) })
		if stood && c.s.Classify(err) == driver.CodeNotHeld {
			c.Errorf("a release reported (%v) although the grant stood", err)
		}
		if !stood && !c.mayEnd() && (!disturbed || c.changedNothing(err)) {
			c.Errorf("a release (%v) found no grant, which nothing has ended", err)
		}
	}
	const again = "releasing a grant again"
	if !disturbed {
		c.code(c.s, c.s.Release(c.Context(), c.got, 0), driver.CodeNotHeld, again)
	} else if c.finally(c.s, again, func(ctx context.Context) error { return c.s.Release(ctx, c.got, 0) }) { // its connection may be gone
		c.Errorf("%s: no error, want not held", again)
	}
	if stood {
		select {
		case cause := <-from(c.req).lost:
			c.Errorf("a grant that stood until its release was reported as lost: %s", cause)
		default:
		}
	}
}

// stands requires that a grant stands, unless the fault may have ended it.
func (c *faultCase) stands(s driver.Store, g driver.Grant) {
	c.Helper()
	if s == c.s && c.mayEnd() {
		return
	}
	c.busy(c.other, c.request(c.name, driver.Exclusive, long))
	if g.TTL == driver.Forever {
		return
	}
	var err error
	c.eventually("a grant that stands is renewed", func() bool {
		err = s.Renew(c.Context(), []driver.Grant{g})[0].Err
		return err == nil || s.Classify(err) == driver.CodeNotHeld
	}, func() string { return fmt.Sprint(err) })
	if err != nil {
		c.Errorf("a grant that nothing has ended: %v", err)
	}
}

// next grants the name to the client that waits behind, if there is one, and then nothing holds it for a while.
func (c *faultCase) next() {
	c.Helper()
	if c.behind != nil {
		await(c.env, c.behind.done, "the client that waits behind another is not granted")
		if c.behind.err != nil {
			c.Fatalf("the client that waits behind another: %v", c.behind.err)
		}
		g := c.sees(c.behind.g)
		c.stands(c.other, g)
		c.release(c.other, g)
		c.behind = nil
	}
}

// prepare makes what stands before the call.
func (c *faultCase) prepare() {
	c.Helper()
	if c.limit != driver.Exclusive {
		g := c.sees(c.must(c.other, c.request(c.name, c.limit, long)))
		c.beside = &g
	}
	if c.held {
		c.got = c.sees(c.must(c.s, c.requested(false)))
	}
	if c.begin != nil {
		c.begin(c)
	}
	if c.waits {
		r := c.request(c.name, driver.Exclusive, long)
		r.Provisional = !c.spares // the lease of such a grant may end before all other calls are made
		c.behind = c.queue(c.other, r)
	}
}

// call makes the call while a request is disturbed.
func (c *faultCase) call() { c.do(c) }

// finish resolves the call, and requires that it has left nothing.
func (c *faultCase) finish() {
	c.Helper()
	c.end(c)
	if c.beside != nil {
		c.stands(c.other, *c.beside)
		c.release(c.other, *c.beside)
	}
	c.next()
	c.nothing()
	if c.late != nil {
		c.late()
		c.unchanged()
	}
	g := c.sees(c.must(c.other, c.request(c.name, driver.Exclusive, long)))
	if c.late != nil {
		c.late()
		c.stands(c.other, g)
	}
	c.release(c.other, g)
}

// unchanged requires that a late request has left nothing at the store.
func (c *faultCase) unchanged() {
	c.Helper()
	if c.h.Leftovers == nil {
		return
	}
	c.soon("a late request has left nothing", func() (bool, string) {
		all := slices.DeleteFunc(c.h.Leftovers(c.T), func(left string) bool { return !strings.Contains(left, c.name) })
		return len(all) == 0, strings.Join(all, ", ")
	})
}

// disturbance disturbs requests of one client.
type disturbance struct {
	s driver.Store
	// begin disturbs the nth request from now. end ends that, and reports whether a request was disturbed and
	// whether the server did not get it.
	begin func(nth int)
	end   func() (hit, unsent bool)
	late  func() // sends the requests that were held back; nil if there are none
	ends  bool   // it may end the client's connection
	tries int    // how many of a call's requests are disturbed, each in a call of its own
}

// faults makes each call while a request of the client is disturbed in each possible way. A call has the outcome that
// it returns, or one that later calls find. It leaves nothing, and ends no grant but its own.
func faults(e *env) {
	cases := map[string]func(*env){}
	turns := 6
	add := func(fault string, open func(*env) *disturbance) {
		for name, begin := range e.faultCases() {
			cases[fault+"/"+name] = func(e *env) {
				d := open(e)
				other := e.open()
				for nth, hit := 0, true; hit && nth < d.tries && !e.Failed(); nth++ {
					c := begin(e.named(d.s, other))
					c.ends, c.late = d.ends, d.late
					c.prepare()
					d.begin(nth)
					c.call()
					hit, c.unsent = d.end()
					c.finish()
				}
			}
		}
	}
	if e.h.Steps != nil {
		for fault, step := range e.h.Steps.Faults {
			add(fault, func(e *env) *disturbance { return e.disturbSteps(step) })
		}
		if e.h.Steps.Late != nil {
			add("late", (*env).delaySteps)
		}
	}
	if lossy := e.lossy(); lossy != nil {
		add("the answer is lost", lossy)
		if e.h.OpenLate == nil {
			turns = 1 // the loss may hit any client
		}
	}
	e.inTurns(turns, cases)
}

// disturbSteps opens a client whose requests the harness disturbs by a step.
func (e *env) disturbSteps(fault func(send func() error) error) *disturbance {
	var left atomic.Int64 // the requests until the one that is disturbed, which is 1
	var hit, sent atomic.Bool
	s := e.h.Steps.Open(e.T, func(send func() error) error {
		if left.Load() <= 0 || left.Add(-1) != 0 {
			return send()
		}
		hit.Store(true)
		return fault(func() error { sent.Store(true); return send() })
	})
	return &disturbance{
		s:     e.opened(s),
		begin: func(nth int) { hit.Store(false); sent.Store(false); left.Store(int64(nth) + 1) },
		end:   func() (bool, bool) { left.Store(0); return hit.Load(), !sent.Load() },
		tries: 8,
	}
}

// delaySteps opens a client whose requests the server gets when late is called.
func (e *env) delaySteps() *disturbance {
	var mu sync.Mutex
	var held []func() error
	d := e.disturbSteps(func(send func() error) error {
		mu.Lock()
		defer mu.Unlock()
		held = append(held, send)
		return e.h.Steps.Late
	})
	begin := d.begin
	d.begin = func(nth int) {
		mu.Lock()
		held = nil
		mu.Unlock()
		begin(nth)
	}
	d.late = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, send := range held {
			_ = send()
		}
	}
	return d
}

// lossy returns a function that opens a client whose answers are lost, or nil if the harness cannot.
func (e *env) lossy() func(*env) *disturbance {
	open := func(e *env) (driver.Store, func(after int)) {
		return e.open(), func(after int) { e.h.LoseAnswer(e.T, after) }
	}
	if e.h.OpenLate != nil {
		open = func(e *env) (driver.Store, func(after int)) {
			s, link := e.h.OpenLate(e.T)
			e.Cleanup(e.closeAll) // before the harness closes the link
			return e.opened(s), link.LoseAnswer
		}
	} else if e.h.LoseAnswer == nil {
		return nil
	}
	return func(e *env) *disturbance {
		s, lose := open(e)
		return &disturbance{
			s: s, begin: lose, tries: 3, ends: true,
			end: func() (bool, bool) { lose(-1); return true, false },
		}
	}
}

// Refusals makes each call of the contract by s, a client of the store of h, while the server refuses some of its
// requests. It tests one reason after another. A call that is refused changes nothing.
func Refusals(t *testing.T, h Harness, s driver.Store, reasons ...Refusal) {
	e := &env{suite: newSuite(t, h), T: t}
	t.Cleanup(e.closeAll)
	other := e.open()
	for _, reason := range reasons {
		t.Run(reason.Name, func(t *testing.T) {
			own := &env{suite: e.suite, T: t}
			cases := map[string]*faultCase{}
			for name, begin := range own.faultCases() {
				c := begin(own.named(s, other))
				c.refuses = true
				c.spares = slices.ContainsFunc(reason.Succeed, func(call string) bool { return strings.HasPrefix(name, call) })
				c.prepare()
				cases[name] = c
			}
			func() {
				defer reason.End(t)
				reason.Begin(t)
				for _, c := range cases {
					c.call()
				}
			}()
			noticed := false
			finish := map[string]func(*env){}
			for name, c := range cases {
				noticed = noticed || c.err != nil || c.w != nil && c.w.refused()
				finish[name] = func(e *env) { c.in(e); c.finish() }
			}
			own.inTurns(len(finish), finish)
			if !noticed && !reason.Unnoticed {
				t.Error("no call was refused")
			}
		})
	}
}

// in continues a case in another test.
func (c *faultCase) in(e *env) {
	c.env = e
	for _, w := range []*waiting{c.w, c.behind} {
		if w != nil {
			w.e = e
		}
	}
}

// refused reports whether a wait has ended with CodeRefused.
func (w *waiting) refused() bool {
	select {
	case <-w.done:
		return w.err != nil && w.s.Classify(w.err) == driver.CodeRefused
	default:
		return false
	}
}

// faultCases returns, for each call, limit, and waiter behind the client, a function that begins its case.
func (e *env) faultCases() map[string]func(*namedCase) *faultCase {
	cases := map[string]func(*namedCase) *faultCase{}
	for name, call := range faultCalls {
		if call.possible != nil && !call.possible(e) {
			continue
		}
		cases[name] = func(n *namedCase) *faultCase { return &faultCase{namedCase: n, faultCall: call} }
		if !call.held {
			continue
		}
		if e.pushes() {
			cases[name+" before a waiter"] = func(n *namedCase) *faultCase {
				return &faultCase{namedCase: n, faultCall: call, waits: true}
			}
		}
		for _, limit := range e.kinds()[1:] {
			cases[fmt.Sprintf("%s with limit %d", name, limit)] = func(n *namedCase) *faultCase {
				n.use(limit)
				return &faultCase{namedCase: n, faultCall: call}
			}
		}
	}
	return cases
}
