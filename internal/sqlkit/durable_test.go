package sqlkit

import (
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
	fails  []error
	clear  error
	locks  int
	clears int
}

func (r *failing) Lock(ctx context.Context, s *Session, _ *LockRequest) (Got, error) {
	r.locks++
	if len(r.fails) == 0 {
		return Got{Token: 1, Slot: driver.NoSlot}, nil
	}
	err := r.fails[0]
	r.fails = r.fails[1:]
	return Got{}, clearAfter(ctx, r, s, err)
}

func (r *failing) Clear(ctx context.Context, _ *Session) error {
	r.clears++
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.clear
}

func (*failing) Sort(err error) (error, bool) {
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, err == errVictim
}

// TestFailureAfterLockIsReported: a session gets the lock, and the request then fails. The
// recipe clears the session once, before the next try. The outcome is unknown only if it
// cannot clear the session.
func TestFailureAfterLockIsReported(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		clear error
		code  driver.Code
		locks int
		ok    bool
	}{
		{name: "refused", err: errRights, code: driver.CodeRefused, locks: 1},
		{name: "lost", err: errLost, code: driver.CodeUnavailable, locks: 1},
		{name: "victim", err: errVictim, locks: 2, ok: true},
		{name: "unsent", err: ErrUnsent, locks: 2, ok: true},
		{name: "refused, not cleared", err: errRights, clear: errLost, code: driver.CodeUnknown, locks: 1},
		{name: "victim, not cleared", err: errVictim, clear: errLost, code: driver.CodeUnknown, locks: 1},
		{name: "unsent, not cleared", err: ErrUnsent, clear: ErrUnsent, code: driver.CodeUnknown, locks: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &failing{fails: []error{c.err}, clear: c.clear}
			e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{Min: 2, Max: 2}, "")
			defer e.Close(t.Context())
			_, err := e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}})
			if c.ok != (err == nil) || err != nil && driver.CodeOf(err) != c.code {
				t.Errorf("%v: %v; want %v", driver.CodeOf(err), err, c.code)
			}
			if r.locks != c.locks || r.clears != 1 {
				t.Errorf("locked %d times, want %d, and cleared %d times, want once", r.locks, c.locks, r.clears)
			}
		})
	}
}
