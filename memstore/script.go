package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Outcome is the real outcome of a request whose answer is lost.
type Outcome int

// The outcomes.
const (
	// Applied: the store executed the request, and the answer was lost.
	Applied Outcome = iota
	// Dropped: the request never arrived.
	Dropped
	// Late: the request arrives after a while, unless it was undone before.
	Late
)

// script has the failures that are still to come. The name "" matches every name.
type script struct {
	acquires, renewals, releases, undos []fault
	late                                map[string]*time.Timer // by request
	stopped                             chan struct{}          // closed by Start; nil while the store runs
}

type fault struct {
	name    string
	left    int // how many calls still fail
	err     error
	outcome Outcome // of an acquisition
	delay   time.Duration
}

// takeFault returns the first fault for a name, and uses it once. It returns nil if there is none.
func takeFault(faults *[]fault, name string) *fault {
	for i := range *faults {
		f := &(*faults)[i]
		if f.name != "" && f.name != name {
			continue
		}
		taken := *f
		if f.left--; f.left == 0 {
			*faults = append((*faults)[:i:i], (*faults)[i+1:]...)
		}
		return &taken
	}
	return nil
}

// forget prevents a late request from arriving.
func (sc *script) forget(id string) {
	if t := sc.late[id]; t != nil {
		t.Stop()
		delete(sc.late, id)
	}
}

// Script simulates failures of the store, for tests of the caller's own code. It affects all clients of
// the store. Its methods take effect at once, or at the next matching call; they are safe for concurrent
// use. Names are names of the client's namespace; "" matches every name if the method's comment states that.
type Script struct{ s *store }

// Script returns the store's script.
func (s *Store) Script() Script { return Script{s.store} }

func (c Script) edit(f func(*script)) {
	c.s.space.mu.Lock()
	defer c.s.space.mu.Unlock()
	f(&c.s.space.script)
}

// Lose ends every grant of the name now, as an operator or a failover would, and notifies the holders. It
// returns an error of code CodeNotHeld if there is none.
func (c Script) Lose(name string, cause driver.Cause) error { return c.s.endGrants(name, 0, cause) }

// Forget ends every grant of the name now without a notification. The holder's next renewal, or
// its release, detects the end.
func (c Script) Forget(name string) {
	sp := c.s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if n := sp.names[c.s.key(name)]; n != nil {
		for _, e := range slices.Clone(n.holders) {
			sp.drop(e)
		}
	}
}

// FailAcquire makes the next n acquisitions of the name ("" for any) fail with err, without an effect.
func (c Script) FailAcquire(name string, n int, err error) {
	c.edit(func(sc *script) {
		sc.acquires = append(sc.acquires, fault{name: name, left: n, err: err, outcome: Dropped})
	})
}

// LoseAcquireAnswer makes the outcome of the next acquisition of the name ("" for any) unknown to its
// caller. outcome is the real outcome, after delay if it is Late.
func (c Script) LoseAcquireAnswer(name string, outcome Outcome, delay time.Duration) {
	c.edit(func(sc *script) {
		sc.acquires = append(sc.acquires, fault{name: name, left: 1, outcome: outcome, delay: delay,
			err: driver.Errorf(driver.CodeUnknown, "the answer was lost (scripted)")})
	})
}

// FailRenewals makes the next n renewals of the name ("" for any) fail with err. If err is nil,
// they fail as with an unreachable store.
func (c Script) FailRenewals(name string, n int, err error) {
	if err == nil {
		err = driver.Errorf(driver.CodeUnavailable, "the store cannot be reached (scripted)")
	}
	c.edit(func(sc *script) { sc.renewals = append(sc.renewals, fault{name: name, left: n, err: err}) })
}

// DelayRenewal delays the next renewal of the name ("" for any) by d.
func (c Script) DelayRenewal(name string, d time.Duration) {
	c.edit(func(sc *script) { sc.renewals = append(sc.renewals, fault{name: name, left: 1, delay: d}) })
}

// FailReleases makes the next n releases of the name ("" for any) fail with err, without an effect.
func (c Script) FailReleases(name string, n int, err error) {
	c.edit(func(sc *script) { sc.releases = append(sc.releases, fault{name: name, left: n, err: err}) })
}

// FailUndos makes the next n undos of the name ("" for any) fail with err.
func (c Script) FailUndos(name string, n int, err error) {
	c.edit(func(sc *script) { sc.undos = append(sc.undos, fault{name: name, left: n, err: err}) })
}

// Reset removes all failures that are still to come.
func (c Script) Reset() {
	c.edit(func(sc *script) { sc.acquires, sc.renewals, sc.releases, sc.undos = nil, nil, nil, nil })
}

// Stop makes the store unreachable: calls block until their context ends, and their outcome is unknown
// (nothing is executed). Leases still expire. Queue entries stay.
func (c Script) Stop() {
	c.edit(func(sc *script) {
		if sc.stopped == nil {
			sc.stopped = make(chan struct{})
			c.s.space.halted.Store(true)
		}
	})
}

// Start ends a Stop.
func (c Script) Start() {
	c.edit(func(sc *script) {
		if sc.stopped != nil {
			c.s.space.halted.Store(false)
			close(sc.stopped)
			sc.stopped = nil
		}
	})
}

// ready waits while the store is stopped.
func (s *store) ready(ctx context.Context) error {
	for {
		if err := s.checkOpen(); err != nil || !s.space.halted.Load() {
			return err
		}
		s.space.mu.Lock()
		stopped := s.space.script.stopped
		s.space.mu.Unlock()
		if stopped == nil {
			return nil
		}
		select {
		case <-stopped:
		case <-s.end:
		case <-ctx.Done():
			return driver.Errorf(driver.CodeUnknown, "no answer (scripted): %w", ctx.Err())
		}
	}
}

// applyFault does what an acquisition does whose answer is lost. The caller holds the space's mutex.
func (sp *space) applyFault(e *entry, key string, f *fault) {
	switch f.outcome {
	case Applied:
		sp.grantIfFree(e, key)
	case Late:
		if sp.script.late == nil {
			sp.script.late = map[string]*time.Timer{}
		}
		sp.script.late[e.id] = time.AfterFunc(f.delay, func() {
			sp.mu.Lock()
			defer sp.mu.Unlock()
			if _, expected := sp.script.late[e.id]; expected {
				delete(sp.script.late, e.id)
				sp.grantIfFree(e, key)
			}
		})
	}
}

// grantIfFree grants a request that does not wait. If the name is held, the request has no effect. The
// caller holds the space's mutex.
func (sp *space) grantIfFree(e *entry, key string) {
	n := sp.open(key)
	sp.expire(n)
	if len(n.queue) > 0 || !n.admits(e.limit) {
		return
	}
	e.n = n
	sp.grant(e)
	sp.arm(n)
}

// renewFault returns the error of the next scripted fault of a renewal, after its delay.
func (sp *space) renewFault(ctx context.Context, name string) error {
	sp.mu.Lock()
	f := takeFault(&sp.script.renewals, name)
	sp.mu.Unlock()
	if f == nil {
		return nil
	}
	if f.delay > 0 {
		if err := backoff.Sleep(ctx, f.delay); err != nil {
			return driver.Errorf(driver.CodeUnknown, "no answer (scripted): %w", err)
		}
	}
	return f.err
}
