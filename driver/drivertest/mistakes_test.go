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
		message: `"NAME" is free, and none of the other waiters was granted within 5s: a freed name is granted to its next waiter`},
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
	"a session keeps its first TTL": {test: "LongerTTLStands",
		request: func(c *client, r *driver.Request) {
			c.once.Do(func() { c.first = r.TTL })
			r.TTL = min(r.TTL, c.first)
		}},
}

// long is a TTL that is longer than a test.
const long = time.Minute

var (
	plantedPermits   atomic.Int32 // permits that were granted
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
	delay *atomic.Int64
	once  sync.Once
	first time.Duration
	swaps atomic.Int32
	real  sync.Map // the store's grant of each request, without the mistake
}

func (c *client) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	g, err := c.Store.Guarantees(ctx)
	g.Visible, g.Break = driver.VisibleNothing, driver.BreakNone // a client has Store's methods alone
	if c.declare != nil {
		c.declare(&g)
	}
	return g, err
}

func (c *client) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if _, cancelled := plantedCancelled.Load(g.Name); c.keeps && cancelled {
		return nil
	}
	if real, ok := c.real.Load(g.ID); ok && c.answer != nil {
		g = real.(driver.Grant)
	}
	return c.Store.Release(ctx, g, keep)
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
	g, err := c.Store.Acquire(ctx, sent)
	if r.Wait && ctx.Err() != nil {
		plantedCancelled.Store(r.Name, nil)
		if c.cancelled != nil {
			c.cancelled(c, r.Name)
		}
	}
	time.Sleep(time.Duration(c.delay.Load())) // the answer is delayed on its way
	if err == nil {
		c.real.Store(g.ID, g)
		g.TTL = r.TTL
		if c.answer != nil {
			c.answer(r, &g)
		}
	}
	return g, err
}

// Swap makes two calls, which stand for one step. The first Swap of a client without a mistake sends
// nothing, which the contract allows.
func (c *client) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	if c.swaps.Add(1) == 1 && c.swap == nil {
		return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "nothing was sent")
	}
	requested := r
	if ctx.Err() == nil || c.swap != nil {
		if c.swap == nil || c.swap(c, old, &requested, released) {
			released(c.Release(ctx, old, 0))
		}
	}
	g, err := c.Acquire(ctx, requested)
	g.Name, g.Limit = r.Name, r.Limit
	return g, err
}

func (c *client) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := c.Store.Renew(ctx, grants)
	time.Sleep(time.Duration(c.delay.Load()))
	for i := range answers {
		if c.renew != nil {
			c.renew(&answers[i])
		}
	}
	return answers
}

const mistakeEnv = "HOLDFAST_DRIVERTEST_MISTAKE"

// TestPlantedStore runs the suite, in the process that TestMistakesAreConvicted starts.
func TestPlantedStore(t *testing.T) {
	m, planted := mistakes[os.Getenv(mistakeEnv)]
	if !planted {
		t.Skip("it is run by TestMistakesAreConvicted")
	}
	s := memstore.New()
	delay := new(atomic.Int64)
	drivertest.Run(t, drivertest.Harness{
		Open: func(_ testing.TB, namespace string) driver.Store {
			return &client{Store: s.Namespace(namespace), mistake: m, delay: delay}
		},
		TTL:   m.ttl,
		Stop:  func(testing.TB) { s.Script().Stop() },
		Start: func(testing.TB) { s.Script().Start() },
		Delay: func(_ testing.TB, d time.Duration) { delay.Store(int64(d)) },
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
	if message := regexp.MustCompile(`waiting for "[^"]+", limit 2, request \S+: the store did not call Queued within 5s: `); passed || !message.Match(out) {
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
