package sqlkit

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	errVictim = errors.New("the victim of a deadlock")
	errLost   = errors.New("the answer was lost")
	errRights = driver.Errorf(driver.CodeRefused, "no rights")
)

// failing is a recipe that gets the lock and then fails with the next of its errors, if any is
// left.
type failing struct {
	closing
	fails         []error
	end           error
	locks         int
	ends, unlocks int
}

func (r *failing) Lock(ctx context.Context, _ *Session, a *LockRequest) (Got, error) {
	r.locks++
	if len(r.fails) == 0 {
		return Got{Token: 1, Slot: driver.NoSlot}, nil
	}
	err := r.fails[0]
	r.fails = r.fails[1:]
	a.Durable = true
	return DurableToken(ctx, a, Got{}, func(context.Context) (Got, error) { return Got{}, err })
}

func (r *failing) Unlock(ctx context.Context, _ *Session, _ *LockRequest) (bool, error) {
	r.unlocks++
	return r.end == nil, cmp.Or(ctx.Err(), r.end)
}

func (r *failing) End(ctx context.Context, _ Link, _ Identity) (bool, error) {
	r.ends++
	return r.end == nil, cmp.Or(ctx.Err(), r.end)
}

func (*failing) Sort(err error) (error, bool) {
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, errors.Is(err, errVictim)
}

// TestFailureAfterLockIsReported: a session gets the lock, and the request then fails. The
// engine releases the lock, or ends the session, before the next try. The outcome is unknown only if the server
// does not confirm that.
func TestFailureAfterLockIsReported(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		end   error
		code  driver.Code
		locks int
		ok    bool
	}{
		{name: "refused", err: errRights, code: driver.CodeRefused, locks: 1},
		{name: "lost", err: errLost, code: driver.CodeUnavailable, locks: 1},
		{name: "victim", err: errVictim, locks: 2, ok: true},
		{name: "unsent", err: ErrUnsent, locks: 2, ok: true},
		{name: "refused, not ended", err: errRights, end: errLost, code: driver.CodeUnknown, locks: 1},
		{name: "victim, not ended", err: errVictim, end: errLost, code: driver.CodeUnknown, locks: 1},
		{name: "unsent, not ended", err: ErrUnsent, end: ErrUnsent, code: driver.CodeUnknown, locks: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &failing{fails: []error{c.err}, end: c.end}
			e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{Min: 2, Max: 2}, "")
			defer e.Close(t.Context())
			_, err := e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}})
			if c.ok != (err == nil) || err != nil && driver.CodeOf(err) != c.code {
				t.Errorf("%v: %v; want %v", driver.CodeOf(err), err, c.code)
			}
			if r.locks != c.locks || r.unlocks != 1 || (r.ends > 0) != (c.end != nil) {
				t.Errorf("locked %d times, want %d, unlocked %d times, want once, and ended %d times", r.locks, c.locks, r.unlocks, r.ends)
			}
		})
	}
}

// cancelled is a recipe that gets the lock just as the context of the request ends.
type cancelled struct {
	failing
	cancel func()
}

func (r *cancelled) Lock(context.Context, *Session, *LockRequest) (Got, error) {
	r.cancel()
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

// TestLockAtTheEndOfItsRequestIsReleased: a session gets the lock just as its request ends. The engine releases the lock
// on the session, and closes it. The outcome is unknown if the server confirms neither that nor the end of the session.
func TestLockAtTheEndOfItsRequestIsReleased(t *testing.T) {
	for _, wait := range []bool{false, true} {
		for end, code := range map[error]driver.Code{nil: driver.CodeWithdrawn, errLost: driver.CodeUnknown, errRights: driver.CodeUnknown,
			driver.Errorf(driver.CodeInvalid, "no such function"): driver.CodeUnknown} {
			ctx, cancel := context.WithCancel(t.Context())
			r := &cancelled{failing{end: end}, cancel}
			l := &countedLink{}
			e := NewSessions(func(context.Context) (Link, error) { return l, nil }, r, Idle{Min: 2, Max: 2}, "")
			_, err := e.Acquire(ctx, driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, Wait: wait, From: noRequester{}})
			if driver.CodeOf(err) != code {
				t.Errorf("wait %t, %v: %v %v; want %v", wait, end, driver.CodeOf(err), err, code)
			}
			if r.unlocks != 1 || (r.ends > 0) != (end != nil) || !l.closed.Load() {
				t.Errorf("wait %t, %v: unlocked %d times, want once, ended %d times, closed %t", wait, end, r.unlocks, r.ends, l.closed.Load())
			}
			e.mu.Lock()
			if known := e.leases["1"] != nil; known != (end != nil) {
				t.Errorf("wait %t, %v: Undo finds the session: %t", wait, end, known)
			}
			e.mu.Unlock()
			_ = e.Close(t.Context())
		}
	}
}
