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
	// request, answer and renew change the message that they are named for.
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
			r.Name += "-elsewhere" // where no waiter is before it
			return true
		}},
	"a cancelled swap releases and does not report it": {test: "SwapCancelledBefore",
		swap: func(c *client, old driver.Grant, _ *driver.Request, _ func(error)) bool {
			_ = c.Release(context.Background(), old, 0)
			return false
		}},
	"a cancelled waiter removes the holder's grant": {test: "CancelInTheMiddle",
		// The next waiter is granted beside the holder, which is not notified.
		cancelled: func(c *client, name string) { c.Store.(*memstore.Store).Script().Forget(name) }},
	"a session keeps its first TTL": {test: "LongerTTLStands",
		request: func(c *client, r *driver.Request) {
			c.once.Do(func() { c.first = r.TTL })
			r.TTL = min(r.TTL, c.first)
		}},
}

// client is a client of the memory store that makes a mistake.
type client struct {
	driver.Store
	mistake
	delay *atomic.Int64
	once  sync.Once
	first time.Duration
	swaps atomic.Int32
}

func (c *client) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if c.hangs && r.Wait {
		<-ctx.Done()
		return driver.Grant{}, driver.Errorf(driver.CodeWithdrawn, "%w", context.Cause(ctx))
	}
	sent := r
	if c.request != nil {
		c.request(c, &sent)
	}
	g, err := c.Store.Acquire(ctx, sent)
	if c.cancelled != nil && r.Wait && ctx.Err() != nil {
		c.cancelled(c, r.Name)
	}
	time.Sleep(time.Duration(c.delay.Load())) // the way of the answer
	if err == nil {
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
			out, passed := planted(t, name, m.test)
			if passed || !strings.Contains(string(out), "--- FAIL: TestPlantedStore/"+m.test+" ") {
				t.Errorf("%s does not convict it:\n%s", m.test, out)
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
