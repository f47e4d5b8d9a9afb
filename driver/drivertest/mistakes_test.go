package drivertest_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/memstore"
)

// mistake is a possible mistake of a store. It is planted around the memory
// store, and one test of the suite must convict it.
type mistake struct {
	test string
	// message, if not empty, is a part of the message of the failing test: see messages.
	message string
	// first is a test that fails before the test in question, which then waits for 5 s only.
	first string
	ttl   time.Duration // of the harness, if not 0
	// declare changes the guarantees, fails refuses a request, and keeps
	// ignores the release of a name for which a wait was cancelled.
	declare func(*driver.Guarantees)
	fails   func(driver.Request) error
	keeps   bool
	// request, answer and renew change the messages after which they are named.
	request func(c *client, r *driver.Request)
	answer  func(r driver.Request, g *driver.Grant)
	renew   func(*driver.Renewal)
	hangs   bool // no waiter gets an answer
	// cancelled is called when a wait has ended because its context ended.
	cancelled func(c *client, name string)
	// late is what a request does that arrives after its end; nil if the store refuses it.
	late func(c *client, l lateCall)
	// lost returns the error of a call whose answer was lost; nil if it is errHeld.
	lost func(call string) error
	// revives lets a renewal revive a grant that no other request has claimed.
	revives bool
	// seen makes tokens from the store's clock and from the last token that the client has seen.
	seen bool
	// sweeps is what a sweep does.
	sweeps func(c *client)
	// arrives sets the validity from the arrival of a request.
	arrives bool
	// released is called after a Release.
	released func(c *client, g driver.Grant)
	// swapped changes the grant of a Swap.
	swapped func(*driver.Grant)
	// swap changes what a Swap does.
	swap func(c *client, old driver.Grant, r *driver.Request, released func(error)) (release bool)
}

var mistakes = map[string]mistake{
	"none": {test: ""},
	"a grant is valid from its answer": {test: "ValidityNotFromTheAnswer",
		answer: func(_ driver.Request, g *driver.Grant) { g.SentAt = driver.Now() }},
	"a grant after a wait is valid from its answer": {test: "ValidityNotFromTheAnswer",
		answer: func(r driver.Request, g *driver.Grant) {
			if r.Wait {
				g.SentAt = driver.Now()
			}
		}},
	"a grant is valid from the arrival of its request": {test: "ValidityNotFromTheArrival", arrives: true},
	"a renewal is valid from its arrival": {test: "ValidityNotFromTheArrival",
		renew: func(a *driver.Renewal) { a.SentAt = driver.Now() }},
	"a renewal revives a grant that nobody has claimed": {test: "RenewAfterDeadline", revives: true,
		message: `renewing a grant whose deadline has passed: no error, want not held`},
	"a client remembers only its own tokens while the clock is behind": {test: "TokensOfAServerClock",
		message: `the clock is 0s ahead: client NUM got token NUM after NUM: TOKENS`,
		seen:    true},
	"a sweep removes a name that is held": {test: "OperatorsBesideLockers", sweeps: func(c *client) {
		if name, held := plantedName.Load().(string); held {
			c.Store.(*memstore.Store).Script().Forget(name)
		}
	}},
	"a released name is kept for a caller that may come back": {test: "UnlockedNameIsFree",
		message: `TryLock of a name that every caller has unlocked: `,
		released: func(c *client, g driver.Grant) {
			if kept, err := c.Store.Acquire(context.Background(), revived(g)); err == nil {
				time.AfterFunc(2*time.Millisecond, func() { _ = c.Store.Release(context.Background(), kept, 0) })
			}
		}},
	"a grant by a swap is valid from its answer": {test: "ValidityNotFromTheAnswer",
		message: `limit 1, a grant by a swap: SentAt is`,
		swapped: func(g *driver.Grant) { g.SentAt = driver.Now() }},
	"a provisional grant is valid from its message": {test: "ValidityNotFromTheAnswer",
		message: `limit 1, a grant by the client's own release: SentAt is`,
		answer: func(r driver.Request, g *driver.Grant) {
			if r.Provisional {
				g.SentAt = driver.Now()
			}
		}},
	"a grant in a batch is valid from its answer": {test: "ValidityNotFromTheAnswer",
		message: `limit 1, a grant of many at once: SentAt is`,
		answer: func(_ driver.Request, g *driver.Grant) {
			if plantedInFlight.Load() > 1 {
				g.SentAt = driver.Now()
			}
		}},
	"a late request is granted after its undo": {test: "LateRequests", message: `not so within 5.5s after a disturbed request: `,
		late: func(c *client, l lateCall) {
			if l.request != nil {
				_, _ = c.Store.Acquire(context.Background(), *l.request)
			}
		}},
	"a late request joins the queue after its undo": {test: "LateRequests", message: `not so within 5.5s after a disturbed request: `,
		late: func(c *client, l lateCall) {
			if l.request != nil && l.request.Wait && !l.swap {
				_, _ = c.Store.Acquire(context.Background(), *l.request)
			}
		}},
	"a request whose answer was lost counts as not made": {test: "Faults",
		message: `not so within 5.5s after a disturbed request: `,
		lost: func(call string) error {
			if call == "acquire" {
				return driver.Errorf(driver.CodeUnavailable, "no answer")
			}
			return errHeld
		}},
	"a renewal whose answer was lost counts as too late": {test: "Faults", message: `a renewal: no answer`,
		lost: func(call string) error {
			if call == "renew" {
				return driver.Errorf(driver.CodeNotHeld, "no answer")
			}
			return errHeld
		}},
	"a release whose answer was lost counts as refused": {test: "Faults", message: `a release: busy`,
		lost: func(call string) error {
			if call == "release" {
				return driver.Errorf(driver.CodeBusy, "busy")
			}
			return errHeld
		}},
	"a late swap makes its request": {test: "LateRequests", message: `not so within 5.5s after a disturbed request: `,
		late: func(c *client, l lateCall) {
			if l.swap {
				_, _ = c.Store.Acquire(context.Background(), *l.request)
			}
		}},
	"a late release ends the next grant": {test: "LateRequests", late: func(c *client, l lateCall) {
		if l.release {
			c.Store.(*memstore.Store).Script().Forget(l.grant.Name)
		}
	}},
	"a late swap ends the next grant": {test: "LateRequests", late: func(c *client, l lateCall) {
		if l.swap {
			c.Store.(*memstore.Store).Script().Forget(l.grant.Name)
		}
	}},
	"a late undo ends the next grant": {test: "LateRequests", late: func(c *client, l lateCall) {
		if l.undo {
			c.Store.(*memstore.Store).Script().Forget(l.grant.Name)
		}
	}},
	"a late renewal revives a grant": {test: "LateRequests", message: `not so within 5.5s after a disturbed request: `,
		late: func(c *client, l lateCall) {
			if l.renewal {
				_, _ = c.Store.Acquire(context.Background(), revived(l.grant))
			}
		}},
	"a late renewal ends the next grant": {test: "LateRequests",
		late: func(c *client, l lateCall) {
			if l.renewal {
				c.Store.(*memstore.Store).Script().Forget(l.grant.Name)
			}
		}},
	"a renewal is valid from its answer": {test: "ValidityNotFromTheAnswer",
		renew: func(a *driver.Renewal) { a.SentAt = driver.Now() }},
	"a grant after a wait keeps the deadline of its queue entry": {test: "StandsForItsTTL",
		request: func(_ *client, r *driver.Request) {
			if r.Wait {
				r.TTL = min(r.TTL, 500*time.Millisecond)
			}
		}},
	"a grant has a token more than it has reserved": {test: "TokensReserved",
		answer: func(_ driver.Request, g *driver.Grant) {
			if g.Tokens > 1 {
				g.Tokens++
			}
		}},
	"tokens repeat and no waiter gets an answer": {test: "TokensRise", hangs: true,
		answer: func(_ driver.Request, g *driver.Grant) { g.Token = 1 }},
	"a swap reports a release that it has not made": {test: "Swap",
		swap: func(_ *client, _ driver.Grant, r *driver.Request, released func(error)) bool {
			released(nil)
			r.Name += "-elsewhere"
			return false
		}},
	"a swap reports its release twice": {test: "Swap",
		swap: func(c *client, old driver.Grant, _ *driver.Request, released func(error)) bool {
			released(c.Release(context.Background(), old, 0))
			released(nil)
			return false
		}},
	"a swap of an ended grant reports a release": {test: "SwapOfEndedGrant",
		swap: func(c *client, old driver.Grant, _ *driver.Request, released func(error)) bool {
			_ = c.Release(context.Background(), old, 0)
			released(nil)
			return false
		}},
	"a swap ends the grant of another client": {test: "SwapOfEndedGrant",
		swap: func(c *client, old driver.Grant, _ *driver.Request, _ func(error)) bool {
			c.Store.(*memstore.Store).Script().Forget(old.Name)
			return true
		}},
	"a swap grants its request before the waiters": {test: "SwapQueuesLast",
		swap: func(_ *client, _ driver.Grant, r *driver.Request, _ func(error)) bool {
			r.Name += "-elsewhere" // no waiter of that name is before the request
			return true
		}},
	"a swap of a young grant hands it off beside the waiters": {test: "SwapOfYoungGrant",
		swap: func(_ *client, old driver.Grant, r *driver.Request, _ func(error)) bool {
			if age, _ := old.SentAt.Elapsed(); age < driver.HandoffTime {
				r.Name += "-elsewhere"
			}
			return true
		}},
	"a swap keeps the TTL of the old grant": {test: "SwapToAnotherRequest",
		answer: func(_ driver.Request, g *driver.Grant) { g.TTL = min(g.TTL, time.Minute/2) }},
	"a cancelled swap releases and does not report it": {test: "SwapCancelledBefore",
		swap: func(c *client, old driver.Grant, _ *driver.Request, _ func(error)) bool {
			_ = c.Release(context.Background(), old, 0)
			return false
		}},
	"a cancelled waiter removes the holder's grant": {test: "CancelInTheMiddle",
		// The next waiter is granted beside the holder, which is not notified.
		cancelled: func(c *client, name string) { c.Store.(*memstore.Store).Script().Forget(name) }},
	"a request is granted beside the holder": {test: "Exclusive", request: elsewhere, answer: renamed,
		message: `Acquire("NAME", limit 1, request ID) was granted token NUM, want busy: LIMITS`},
	"a permit is granted beside too many": {test: "LimitRule", answer: renamed,
		request: func(c *client, r *driver.Request) {
			if r.Limit > 1 {
				elsewhere(c, r)
			}
		},
		message: `"NAME", limit NUM, request ID: granted beside NUM others: LIMITS`},
	"a permit is refused beside too few": {test: "LimitRule", answer: renamed,
		request: func(_ *client, r *driver.Request) { r.Limit = driver.Exclusive },
		message: `"NAME", limit NUM, request ID: refused beside NUM others, although the rule admits it (LIMITS): `},
	"a request fails": {test: "LimitRule",
		fails:   func(driver.Request) error { return driver.Errorf(driver.CodeRefused, "no") },
		message: `"NAME", limit NUM, request ID: no, want a grant or busy: a request that does not wait has no other answer`},
	"a first request fails": {test: "Exclusive",
		fails:   func(driver.Request) error { return driver.Errorf(driver.CodeRefused, "no") },
		message: `"NAME", limit 1, request ID: no, want a grant: no holder or waiter excludes it`},
	"a limit works and is not declared": {test: "LimitsNotDeclared",
		declare: func(g *driver.Guarantees) { g.Semaphore = false },
		message: `"NAME", limit 3, request ID: a limit that is not declared: no error, want `},
	"two permits have one slot": {test: "Slots",
		answer:  func(_ driver.Request, g *driver.Grant) { g.Slot = min(g.Slot, 0) },
		message: `"NAME", limit 4, request ID: slot 0 beside `},
	"a permit gets a slot that is taken": {test: "Slots",
		answer: func(r driver.Request, g *driver.Grant) {
			if r.Limit > 1 && plantedPermits.Add(1) > 4 {
				g.Slot = 3
			}
		},
		message: `"NAME", limit 4, request ID: slot 3, but only slot 2 is free: a permit gets a free slot`},
	"an exclusive grant has a slot": {test: "Slots",
		answer: func(r driver.Request, g *driver.Grant) {
			if r.Limit == driver.Exclusive {
				g.Slot = 0
			}
		},
		message: `"NAME", limit 1, request ID: slot 0, want NoSlot: an exclusive grant has no slot`},
	"tokens of a name repeat": {test: "TokensRise",
		answer:  func(_ driver.Request, g *driver.Grant) { g.Token = 1 },
		message: `"NAME", limit NUM, request ID: token 1 after 1: TOKENS`},
	"a token after a wait repeats": {test: "TokensRise", answer: oneAfterWait,
		message: `"NAME", limit 4, request ID: token 1 was granted before, or is not above NUM: TOKENS`},
	"tokens fall in the queue": {test: "Order", answer: oneAfterWait,
		message: `"NAME", request ID: token 1 after NUM: TOKENS`},
	"a token falls after an expiry": {test: "TokensRiseAcrossExpiry",
		answer:  func(_ driver.Request, g *driver.Grant) { g.Token = 1 },
		message: `"NAME", request ID: token 1 after 1, which has expired: TOKENS`},
	"a grant ends before its TTL": {test: "WaitEndsByExpiry", ttl: long,
		request: func(_ *client, r *driver.Request) { r.TTL = min(r.TTL, 100*time.Millisecond) },
		message: `"NAME": request ID was granted TIME after request ID set the TTL of TIME: no other grant begins before SentAt + TTL`},
	"a release is not made": {test: "CancelInTheMiddle", first: "CancelledWaitLeavesNothing", keeps: true,
		message: `"NAME" is free, and none of the other waiters was granted within 8s: a freed name is granted to its next waiter`},
	"a cancelled waiter frees the name": {test: "CancelBesideAHolder",
		cancelled: func(c *client, name string) { c.Store.(*memstore.Store).Script().Forget(name) },
		message:   `"NAME", request ID: token NUM granted beside request ID with token NUM: LIMITS`},
	"all waiters are granted": {test: "CancelAtAnyMoment", answer: renamed, request: elsewhere,
		message: `"NAME", request ID: token NUM is one of NUM exclusive grants at once: LIMITS`},
	"a waiter is granted beside the holder": {test: "Order", answer: renamed,
		request: func(c *client, r *driver.Request) {
			if r.Wait {
				elsewhere(c, r)
			}
		},
		message: `waiting for "NAME", limit 1, request ID: ended while the name is held: token NUM, `},
	"a session keeps its first TTL": {test: "LongerTTLOutlastsStop",
		request: func(c *client, r *driver.Request) {
			c.once.Do(func() { c.first = r.TTL })
			r.TTL = min(r.TTL, c.first)
		}},
}

// long is a TTL that is longer than a test.
const long = time.Minute

var (
	plantedPermits   atomic.Int32 // permits that were granted
	plantedName      atomic.Value // the name of the last grant
	plantedInFlight  atomic.Int32 // requests under way
	plantedClock     atomic.Int64 // how far the store's clock is ahead
	plantedCancelled sync.Map     // names of cancelled waits
)

// elsewhere gives a request a name of its own, which no other request uses.
func elsewhere(_ *client, r *driver.Request) { r.Name += "-" + r.ID }

// renamed changes the name in the grant of an elsewhere request to the requested one.
func renamed(r driver.Request, g *driver.Grant) { g.Name, g.Limit = r.Name, r.Limit }

// oneAfterWait sets the token of a grant after a wait to 1, which is not above the earlier tokens.
func oneAfterWait(r driver.Request, g *driver.Grant) {
	if r.Wait {
		g.Token = 1
	}
}

// messages returns the expression for a message. NAME, ID, NUM and TIME match any value, LIMITS
// and TOKENS the texts of the rules.
func messages(form string) *regexp.Regexp {
	return regexp.MustCompile(strings.NewReplacer(
		"NAME", `suite-[-0-9]+`, "ID", `t[-0-9]+`, "NUM", `\d+`, "TIME", `[0-9.hmµs]+`,
		"LIMITS", "a grant of limit n never stands beside more than n-1 others",
		"TOKENS", "every grant of a name has a larger token than all before it",
	).Replace(regexp.QuoteMeta(form)))
}

// client is a client of the memory store that makes a mistake.
type client struct {
	driver.Store
	mistake
	delay, delayRequests *atomic.Int64
	lateCalls
	once      sync.Once
	first     time.Duration
	lastToken atomic.Uint64
	swaps     atomic.Int32
	real      sync.Map // the store's grant of each request, without the mistake
}

// lateCall is a call whose request was held back.
type lateCall struct {
	request                      *driver.Request // of an Acquire or a Swap
	grant                        driver.Grant    // of the other calls
	release, swap, renewal, undo bool
}

// lateCalls holds the next call of a client back. The client gets no answer.
type lateCalls struct {
	held  atomic.Bool
	calls chan lateCall
	lose  atomic.Bool // the next answer is lost
}

var errHeld = driver.Errorf(driver.CodeUnknown, "no answer")

func (c *client) hold(l lateCall) bool {
	if !c.held.CompareAndSwap(true, false) {
		return false
	}
	c.calls <- l
	return true
}

// Hold holds the next call back.
func (c *client) Hold() {
	c.calls = make(chan lateCall, 1)
	c.held.Store(true)
}

// LoseAnswer loses the answer to the next call.
func (c *client) LoseAnswer(after int) { c.lose.Store(after >= 0) }

// answered returns the error of a call that the store has made.
func (c *client) answered(call string, err error) error {
	switch {
	case err != nil || !c.lose.CompareAndSwap(true, false):
		return err
	case c.lost != nil:
		return c.lost(call)
	}
	return errHeld
}

// Held returns 1 if a call was held back, else 0.
func (c *client) Held() int { return len(c.calls) }

// Deliver executes the call. A store without a mistake refuses it: the client has undone or repeated it.
func (c *client) Deliver(time.Duration) {
	c.held.Store(false)
	select {
	case l := <-c.calls:
		if c.late == nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.late(c, l)
		}()
		select {
		case <-done:
		case <-time.After(50 * time.Millisecond): // it waits
		}
	default:
	}
}

// revived is a request for a grant that has ended.
func revived(g driver.Grant) driver.Request {
	return driver.Request{ID: g.ID, Name: g.Name, Limit: g.Limit, TTL: long, From: noRequester{}}
}

type noRequester struct{}

func (noRequester) Owner() driver.Owner      { return driver.Owner{} }
func (noRequester) Queued([]driver.Holder)   {}
func (noRequester) Lost(driver.Cause, error) {}

// send delays a request, and returns when the client has sent it.
func (c *client) send() driver.Instant {
	sent := driver.Now()
	time.Sleep(time.Duration(c.delayRequests.Load()))
	return sent
}

func (c *client) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	g, err := c.Store.Guarantees(ctx)
	g.Visible, g.Wanted, g.Break = driver.VisibleNothing, "", driver.BreakNone // a client has Store's methods alone
	if c.declare != nil {
		c.declare(&g)
	}
	return g, err
}

func (c *client) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if _, cancelled := plantedCancelled.Load(g.Name); c.keeps && cancelled {
		return nil
	}
	if c.hold(lateCall{grant: g, release: true}) {
		return errHeld
	}
	if real, ok := c.real.Load(g.ID); ok && (c.answer != nil || c.seen) {
		g = real.(driver.Grant)
	}
	err := c.Store.Release(ctx, g, keep)
	if c.released != nil {
		c.released(c, g)
	}
	return c.answered("release", err)
}

func (c *client) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if c.hangs && r.Wait {
		<-ctx.Done()
		return driver.Grant{}, driver.Errorf(driver.CodeWithdrawn, "%w", context.Cause(ctx))
	}
	if c.fails != nil {
		return driver.Grant{}, c.fails(r)
	}
	sent := r
	if c.request != nil {
		c.request(c, &sent)
	}
	if c.hold(lateCall{request: &r}) {
		return driver.Grant{}, errHeld
	}
	plantedInFlight.Add(1)
	defer plantedInFlight.Add(-1)
	send := c.send()
	g, err := c.Store.Acquire(ctx, sent)
	switch {
	case c.delayRequests.Load() == 0, c.arrives:
	case r.Wait:
		c.send() // of the confirmation, which sets no new deadline
	default:
		g.SentAt = send
	}
	if r.Wait && ctx.Err() != nil {
		plantedCancelled.Store(r.Name, nil)
		if c.cancelled != nil {
			c.cancelled(c, r.Name)
		}
	}
	time.Sleep(time.Duration(c.delay.Load())) // the answer is delayed on its way
	if err == nil {
		c.real.Store(g.ID, g)
		plantedName.Store(r.Name)
		g.TTL = r.TTL
		if c.answer != nil {
			c.answer(r, &g)
		}
		if c.seen {
			clock := time.Now().UnixMicro() + time.Duration(plantedClock.Load()).Microseconds()
			g.Token = max(uint64(clock), c.lastToken.Load()+1)
			c.lastToken.Store(g.Token)
		}
	}
	return g, c.answered("acquire", err)
}

// Swap makes two calls, which stand for one step. The first Swap of a client without a mistake sends
// nothing, which the contract allows.
func (c *client) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	if c.swaps.Add(1) == 1 && c.swap == nil {
		return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "nothing was sent")
	}
	if c.hold(lateCall{request: &r, grant: old, swap: true}) {
		released(errHeld)
		return driver.Grant{}, errHeld
	}
	requested := r
	if ctx.Err() == nil || c.swap != nil {
		if c.swap == nil || c.swap(c, old, &requested, released) {
			released(c.Release(ctx, old, 0))
		}
	}
	g, err := c.Acquire(ctx, requested)
	g.Name, g.Limit = r.Name, r.Limit
	if c.swapped != nil {
		c.swapped(&g)
	}
	return g, err
}

func (c *client) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	if c.hold(lateCall{grant: grants[0], renewal: true}) {
		return []driver.Renewal{{Err: errHeld}}
	}
	send := c.send()
	answers := c.Store.Renew(ctx, grants)
	time.Sleep(time.Duration(c.delay.Load()))
	for i := range answers {
		answers[i].Err = c.answered("renew", answers[i].Err)
		if c.delayRequests.Load() > 0 {
			answers[i].SentAt = send
		}
		if c.revives && c.Classify(answers[i].Err) == driver.CodeNotHeld {
			if g, err := c.Store.Acquire(ctx, revived(grants[i])); err == nil {
				answers[i] = driver.Renewal{SentAt: g.SentAt, TTL: g.TTL}
			}
		}
		if c.renew != nil {
			c.renew(&answers[i])
		}
	}
	return answers
}

// Undo is held back like any other call.
func (c *client) Undo(ctx context.Context, r driver.Request) error {
	if c.hold(lateCall{grant: driver.Grant{Name: r.Name}, undo: true}) {
		return errHeld
	}
	return c.answered("undo", c.Store.Undo(ctx, r))
}

// Sweep sweeps like the operators of a store do.
func (c *client) Sweep(context.Context, time.Duration) error {
	if c.sweeps != nil {
		c.sweeps(c)
	}
	time.Sleep(time.Millisecond)
	return nil
}

const mistakeEnv = "HOLDFAST_DRIVERTEST_MISTAKE"

// TestPlantedStore runs the suite, in the process that TestMistakesAreConvicted starts.
func TestPlantedStore(t *testing.T) {
	m, planted := mistakes[os.Getenv(mistakeEnv)]
	if !planted {
		t.Skip("it is run by TestMistakesAreConvicted")
	}
	if m.late != nil || m.lost != nil {
		m.ttl = 20 * time.Millisecond // which shortens the timeouts
	}
	s := memstore.New()
	delay, delayRequests := new(atomic.Int64), new(atomic.Int64)
	open := func(namespace string) *client {
		return &client{Store: s.Namespace(namespace), mistake: m, delay: delay, delayRequests: delayRequests}
	}
	drivertest.Run(t, drivertest.Harness{
		Open: func(_ testing.TB, namespace string) driver.Store { return open(namespace) },
		OpenLate: func(testing.TB) (driver.Store, drivertest.Late) {
			c := open("")
			c.swaps.Store(1) // its first Swap sends its request
			return c, c
		},
		TTL:           m.ttl,
		Stop:          func(testing.TB) { s.Script().Stop() },
		Start:         func(testing.TB) { s.Script().Start() },
		Delay:         func(_ testing.TB, d time.Duration) { delay.Store(int64(d)) },
		SetClock:      func(_ testing.TB, ahead time.Duration) { plantedClock.Store(int64(ahead)) },
		DelayRequests: func(_ testing.TB, d time.Duration) { delayRequests.Store(int64(d)) },
	})
}

// planted runs tests of the suite on a store with a mistake.
func planted(t *testing.T, name, tests string) (out []byte, passed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^TestPlantedStore$/^("+tests+")$")
	cmd.Env = append(os.Environ(), mistakeEnv+"="+name)
	out, err := cmd.CombinedOutput()
	return out, err == nil
}

// TestFirstFailureShortensTimeouts: after a test has failed, the next one waits for 5 s instead
// of a minute. Its message names the request and the rule.
func TestFirstFailureShortensTimeouts(t *testing.T) {
	t.Parallel()
	out, passed := planted(t, "tokens repeat and no waiter gets an answer", "TokensRise|SemaphoreQueue")
	if message := regexp.MustCompile(`waiting for "[^"]+", limit 2, request \S+: the store did not call Queued within 8s: `); passed || !message.Match(out) {
		t.Errorf("want %s in:\n%s", message, out)
	}
}

// TestMistakesAreConvicted: each mistake fails its test, and the same store without a
// mistake passes all of these tests.
func TestMistakesAreConvicted(t *testing.T) {
	var all []string
	for name, m := range mistakes {
		if name == "none" {
			continue
		}
		all = append(all, m.test)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tests := m.test
			if m.first != "" {
				tests += "|" + m.first
			}
			out, passed := planted(t, name, tests)
			if passed || !strings.Contains(string(out), "--- FAIL: TestPlantedStore/"+m.test+" ") {
				t.Errorf("%s does not convict it:\n%s", m.test, out)
			}
			if message := messages(m.message); !message.Match(out) {
				t.Errorf("want %s in:\n%s", message, out)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if out, passed := planted(t, "none", strings.Join(all, "|")); !passed {
			t.Errorf("a store without a mistake is convicted:\n%s", out)
		}
	})
}
