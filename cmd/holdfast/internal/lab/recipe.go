//go:build linux || darwin

package lab

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// recipe is a lock on a key-value server, as many programs implement it. The lock is one
// value under the name, with an expiry. A client sets the value only if there is none, and
// only that client renews and removes it. A waiter is notified of releases, and also polls.
// Each field is a mistake. A recipe without a mistake keeps its guarantees.
type recipe struct {
	deleteAnyones        bool // the release does not check the owner of the lock
	renewAnyones         bool // the renewal does not check the owner of the lock
	neverExpires         bool
	checkThenAct         bool // the client checks whether the lock is free, and takes it in a second step
	clientClock          bool // the client's clock decides whether a lock has expired
	clockToken           bool // the token is the client's time
	validityFromAnswer   bool // the validity counts from the server's answer, not from the request
	lostIsNo             bool // the client treats a lost answer as a refusal, although the lock lasts as long as the client
	forgetsFailover      bool // a replica that lags behind replaces the server, and the client does not consider that
	countsPermits        bool // a semaphore is only the number of its permits in use
	checksThenSubscribes bool // the client checks the lock, subscribes to the release, and does not check again
	breaksStale          bool // a client removes an old lock as abandoned
	checksThenFrees      bool // the release checks the owner, and removes the lock in a second step
	noRenewal            bool // the client renews no lock
	ignoresLoss          bool // the client treats a renewal that finds no lock as a success
	oneToken             bool // every grant has the same token
	endsAtOnce           bool // the lock ends with the request that took it
	freesElsewhere       bool // the client sends the release on a connection that does not have the lock
	// keys returns the keys that a client takes for a name, one after the other. The client
	// keeps each key while it waits for the next. If keys is nil, the client takes only the
	// name.
	keys func(c *client, name string) []string
}

// client is one client of the recipe. It is a store for a Locker.
type client struct {
	recipe
	s      *server
	skew   time.Duration // the difference of the client's clock
	far    bool          // the client's answers are late when the network is slow
	closed atomic.Bool
}

// second is the suffix of a name's second key, for a client that needs two.
const second = "/2"

// sameTwice returns the same key twice, so that the client waits for itself.
func sameTwice(_ *client, name string) []string { return []string{name, name} }

// oppositeOrder returns two keys. Half of the clients take them in the opposite order.
func oppositeOrder(c *client, name string) []string {
	if c.far {
		return []string{name + second, name}
	}
	return []string{name, name + second}
}

// everyRow returns the client's own row and the whole table. The client reads the whole
// table to find its row.
func everyRow(_ *client, name string) []string { return []string{name, "table" + second} }

// wire is the time between two commands of one client.
const wire = 300 * time.Microsecond

// pollInterval is the interval at which a waiter polls without a message.
const pollInterval = 20 * time.Millisecond

// staleAfter is the age after which the recipe considers a lock abandoned.
const staleAfter = 2 * ttl

// clientSkew is the difference between the clocks of two machines.
const clientSkew = ttl / 2

var (
	errNotHeld = &driver.Error{Code: driver.CodeNotHeld, Err: errString("the lock is not held")}
	errClosed  = &driver.Error{Code: driver.CodeClosed, Err: errString("the client is closed")}
)

type errString string

func (e errString) Error() string { return string(e) }

func (c *client) String() string { return "lab" }

// Guarantees declares the guarantees of the recipe without a mistake. A holder notices a
// break at its next renewal, after a third of the TTL. A holder that does not run in time
// notices the break when its validity ends, after the TTL. With this TTL that is less than
// check.Slack after Notice, so no lock may have a longer TTL.
func (c *client) Guarantees(context.Context) (driver.Guarantees, error) {
	g := driver.Guarantees{
		Kind: "lab", Scope: driver.ScopeProcess, Crash: driver.CrashFreesAfterTTL, Pause: driver.PauseLoses,
		Order: driver.OrderNone, Wake: driver.WakePush, Fallback: pollInterval, Semaphore: true, Mixed: true,
		Tokens: "a counter of the server", EarlyEnd: []string{"an operator's break"}, Notice: ttl / 3,
		MinTTL: time.Millisecond, MaxTTL: ttl, LeftoversExpire: true, Break: driver.BreakNow, Visible: driver.VisibleHolders,
	}
	if c.session() {
		g.Crash, g.MinTTL, g.MaxTTL, g.LeftoversExpire = driver.CrashFreesAtOnce, 0, 0, false
	}
	return g, nil
}

func (c *client) now() time.Time {
	if c.clientClock {
		return time.Now().Add(c.skew)
	}
	return time.Now()
}

func (c *client) expiry(d time.Duration) time.Time {
	if c.endsAtOnce {
		return c.now().Add(wire)
	}
	if c.neverExpires || d == driver.Forever {
		return time.Time{}
	}
	return c.now().Add(d)
}

// Acquire takes the lock, or waits for it.
func (c *client) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if c.closed.Load() {
		return driver.Grant{}, errClosed
	}
	leaseTTL := r.TTL
	if c.session() {
		leaseTTL = driver.Forever
	}
	keys := []string{r.Name}
	if c.keys != nil {
		keys = c.keys(c, r.Name)
	}
	var v value
	var sent driver.Instant
	for i, key := range keys {
		var err error
		if v, sent, err = c.acquireKey(ctx, r, key, leaseTTL); err != nil {
			for _, taken := range keys[:i] {
				c.s.remove(taken, owned(r.ID))
			}
			return driver.Grant{}, err
		}
	}
	return driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: v.token, SentAt: sent, TTL: leaseTTL, Slot: driver.NoSlot}, nil
}

// acquireKey takes one key, or waits for it. It returns the value that it has written, and the time from
// which the validity counts.
func (c *client) acquireKey(ctx context.Context, r driver.Request, key string, leaseTTL time.Duration) (value, driver.Instant, error) {
	for {
		sent := driver.Now()
		v := value{owner: r.From.Owner(), limit: r.Limit, made: time.Now(), expires: c.expiry(leaseTTL), client: c}
		if c.clockToken {
			v.token = uint64(time.Now().Add(c.skew).UnixMilli())
		}
		if c.oneToken {
			v.token = 1
		}
		v, ok := c.take(key, v)
		c.arrive()
		if c.validityFromAnswer {
			sent = driver.Now()
		}
		if ok {
			return v, sent, nil
		}
		if !r.Wait {
			return v, sent, &driver.BusyError{Holders: c.s.state(key).Holders}
		}
		err := c.listen(ctx, r, key)
		if err == nil && c.closed.Load() {
			err = errClosed
		}
		if err != nil {
			return v, sent, err
		}
	}
}

// session reports whether a lock lasts as long as its client's session.
func (c *client) session() bool { return c.lostIsNo || c.freesElsewhere || c.keys != nil }

func (c *client) take(name string, v value) (value, bool) {
	if v.limit > 1 && c.countsPermits {
		if !c.s.count(name, v.limit, 1) {
			return v, false
		}
		v, ok := c.s.take(name, v, c.now()) // fails if the name has an exclusive lock
		if !ok {
			c.s.count(name, v.limit, -1)
		}
		return v, ok
	}
	if c.breaksStale {
		c.s.remove(name, func(old value) bool { return time.Since(old.made) > staleAfter })
	}
	if !c.checkThenAct {
		return c.s.take(name, v, c.now())
	}
	if !c.s.free(name, v.limit, c.now()) {
		return v, false
	}
	time.Sleep(wire) // the time for the answer to the check, and for the next command
	return c.s.put(name, v), true
}

// arrive delays an answer if the network is slow.
func (c *client) arrive() {
	if c.far && c.s.networkFault() {
		time.Sleep(slowBy)
	}
}

// listen waits until the lock may be free.
func (c *client) listen(ctx context.Context, r driver.Request, key string) error {
	r.From.Queued(nil)
	var again <-chan time.Time
	if !c.checksThenSubscribes {
		t := time.NewTimer(pollInterval)
		defer t.Stop()
		again = t.C
	}
	time.Sleep(wire) // the time for the answer, and for the subscription
	notified, end := c.s.listen(key)
	defer end()
	select {
	case <-notified:
		return nil
	case <-again:
		return nil
	case <-ctx.Done():
		return &driver.Error{Code: driver.CodeWithdrawn, Err: context.Cause(ctx)}
	}
}

// owned returns a function that selects the values of a request.
func owned(id string) func(value) bool { return func(v value) bool { return v.owner.ID == id } }

func anyones(value) bool { return true }

// Undo removes what a request may have left.
func (c *client) Undo(_ context.Context, r driver.Request) error {
	if c.lostIsNo {
		return nil
	}
	c.removeOthers(r.Name, owned(r.ID))
	if c.s.remove(r.Name, owned(r.ID)) && r.Limit > 1 && c.countsPermits {
		c.s.count(r.Name, r.Limit, -1)
	}
	return nil
}

// removeOthers removes the selected values of the name's other keys.
func (c *client) removeOthers(name string, pick func(value) bool) {
	if c.keys == nil {
		return
	}
	for _, key := range c.keys(c, name) {
		if key != name {
			c.s.remove(key, pick)
		}
	}
}

// Renew sets a new expiry for each grant.
func (c *client) Renew(_ context.Context, grants []driver.Grant) []driver.Renewal {
	all := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		pick := owned(g.ID)
		if c.renewAnyones {
			pick = anyones
		}
		if c.s.networkFault() {
			all[i].Err = driver.Errorf(driver.CodeUnknown, "no answer")
			continue
		}
		all[i] = driver.Renewal{SentAt: driver.Now(), TTL: g.TTL}
		if c.noRenewal {
			continue
		}
		if !c.s.extend(g.Name, c.expiry(g.TTL), pick) && !c.ignoresLoss {
			all[i] = driver.Renewal{Cause: driver.CauseGone, Err: errNotHeld}
		}
		c.arrive()
		if c.validityFromAnswer {
			all[i].SentAt = driver.Now()
		}
	}
	return all
}

// Release removes the lock.
func (c *client) Release(_ context.Context, g driver.Grant, _ time.Duration) error {
	pick := owned(g.ID)
	if c.checksThenFrees {
		if !c.s.has(g.Name, pick) {
			return errNotHeld
		}
		c.arrive()
	}
	if c.deleteAnyones || c.checksThenFrees {
		pick = anyones
	}
	if c.freesElsewhere {
		return nil
	}
	c.removeOthers(g.Name, pick)
	if !c.s.remove(g.Name, pick) {
		return errNotHeld
	}
	if g.Limit > 1 && c.countsPermits && !c.s.dies.CompareAndSwap(true, false) {
		c.s.count(g.Name, g.Limit, -1)
	}
	return nil
}

// Break removes the lock for an operator.
func (c *client) Break(_ context.Context, name string, token uint64) error {
	if !c.s.remove(name, func(v value) bool { return v.token == token }) {
		return errNotHeld
	}
	return nil
}

// Inspect returns the holders of a name.
func (c *client) Inspect(_ context.Context, name string) (driver.State, error) {
	return c.s.state(name), nil
}

// List yields the state of every name that has a holder.
func (c *client) List(context.Context, string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		c.s.mu.Lock()
		var names []string
		for name := range c.s.values {
			if !strings.HasSuffix(name, second) {
				names = append(names, name)
			}
		}
		c.s.mu.Unlock()
		slices.Sort(names)
		for _, name := range names {
			if st := c.s.state(name); len(st.Holders) > 0 && !yield(st, nil) {
				return
			}
		}
	}
}

// Classify returns the code of an error.
func (c *client) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Close ends the client's session, if the recipe has sessions.
func (c *client) Close(context.Context) error {
	if !c.closed.Swap(true) && c.session() {
		c.s.leave(c)
	}
	return nil
}
