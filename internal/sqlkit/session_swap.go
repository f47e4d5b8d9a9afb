package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// PassOutcome is the outcome of a Pass.
type PassOutcome int

// These are the outcomes of a Pass.
const (
	// PassRefused: the session has the lock for the old grant, as before.
	PassRefused PassOutcome = iota
	// PassGranted: the session has the lock for the next grant.
	PassGranted
	// PassReleased: the session had the lock and has released it.
	PassReleased
	// PassNotHeld: the session did not have the lock.
	PassNotHeld
)

// Passed returns the grant that follows old on the same session. now is the value of the clock, and
// the session has had the lock since old. Passed refuses the grant if there is no token for it.
func (a *LockRequest) Passed(old *LockRequest, now int64) (Got, PassOutcome, error) {
	last := int64(driver.LastToken(old.Token, old.Reserved))
	first := max(last, now-int64(a.Tokens)) + 1
	if first > now {
		return Got{}, PassRefused, nil // the clock was set back
	}
	return Got{Token: uint64(first), Tokens: int(now - first + 1), Slot: driver.NoSlot}, PassGranted, nil
}

// Swap hands the lock of old off to r in one round trip, if that is possible. Otherwise it
// releases old, and then does what Acquire does.
func (e *Sessions) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	if err := e.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer e.Leave()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, e.closedOr(&driver.Error{Code: driver.CodeWithdrawn, Err: err})
	}
	brief, cancel := context.WithTimeout(ctx, min(max(old.TTL, time.Millisecond), AnswerWithin))
	defer cancel()
	next, err := e.releaseTo(brief, old, &r)
	released(err)
	if next == nil {
		return e.Acquire(ctx, r)
	}
	return e.grant(next, next.sent)
}

// releaseTo releases old. If the session has handed its lock off to r, which may be nil, releaseTo returns the lease of
// r.
func (e *Sessions) releaseTo(ctx context.Context, old driver.Grant, r *driver.Request) (*lease, error) {
	l, err := e.beginRelease(ctx, old)
	if err != nil {
		return nil, err
	}
	defer l.unlock()
	mayHaveEnded := e.mayHaveEnded(l)
	var next *lease
	outcome := PassRefused
	if r != nil && e.canPass(l, r) {
		next = e.newLease(l.s, *r, l.request.TTL)
		next.sent, next.heldSince = driver.Now(), l.heldSince
		var got Got
		got, outcome, err = e.recipe.Pass(ctx, l.s, &l.request, &next.request)
		next.set(got)
	}
	if err == nil && outcome == PassRefused {
		var unlocked bool
		outcome = PassNotHeld
		if unlocked, err = e.recipe.Unlock(ctx, l.s, &l.request); unlocked {
			outcome = PassReleased
		}
	}
	switch {
	case err != nil || outcome == PassNotHeld:
		return nil, e.releaseFailed(ctx, l, mayHaveEnded, err)
	case outcome == PassReleased:
		e.forget(l)
		e.put(l.s)
		return nil, nil
	}
	e.mu.Lock()
	e.leases[r.ID], l.s.lease = next, next
	e.mu.Unlock()
	e.forget(l)
	return next, nil
}

// canPass reports whether the session of a lease can hand its lock off to a request. The caller has
// reserved the session. A grant that has stood for long is not handed off: it is recorded, and only
// Unlock removes the record. Neither is one whose next token has to be committed.
func (e *Sessions) canPass(l *lease, r *driver.Request) bool {
	a := &l.request
	ttl, err := e.recipe.Check(r)
	return err == nil && !e.Durable && a.Name == r.Name && a.Limit == driver.Exclusive && r.Limit == driver.Exclusive && a.TTL == ttl && !a.Record &&
		(l.s.TTL == 0 || l.s.TTL == ttl) && time.Since(l.heldSince) < driver.HandoffTime
}
