package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Sweep does nothing: there are no rows to remove.
func (*Sessions) Sweep(context.Context, time.Duration) error { return nil }

// Undo closes the session of a request, and waits until the server has ended it.
func (e *Sessions) Undo(ctx context.Context, r driver.Request) error {
	if err := e.Enter(); err != nil {
		return err
	}
	defer e.Leave()
	e.mu.Lock()
	l := e.leases[r.ID]
	e.mu.Unlock()
	if l == nil {
		return nil // the request has no session
	}
	return e.finish(ctx, l, nil)
}

// finish closes a session and waits until the server has ended it, or the engine is closed. Then it returns outcome.
// The grant of the session is over in any case.
func (e *Sessions) finish(ctx context.Context, l *lease, outcome error) error {
	ctx, end := e.Bind(ctx)
	defer end()
	return e.finishOn(ctx, l, outcome)
}

func (e *Sessions) finishOn(ctx context.Context, l *lease, outcome error) error {
	e.mu.Lock()
	l.granted, l.closed, l.ending = false, true, true
	e.mu.Unlock()
	e.drop(l.s)
	if err := e.awaitEnd(ctx, l.s.ID); err != nil {
		return e.closedOr(err)
	}
	e.forget(l)
	return outcome
}

// awaitEnd waits until the server has ended a session.
func (e *Sessions) awaitEnd(ctx context.Context, id Identity) error {
	poll := backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}
	for {
		ended := false
		err := e.withSideLink(ctx, func(side Link) (err error) {
			ended, err = e.recipe.End(ctx, side, id)
			return err
		})
		if err != nil {
			coded, _ := e.recipe.Sort(err)
			if code := driver.CodeOf(coded); code == driver.CodeRefused || code == driver.CodeUnavailable {
				return driver.Errorf(driver.CodeUnknown, "the end of the session cannot be confirmed: %w", err)
			}
			return coded
		}
		if ended {
			return nil
		}
		if err := poll.Sleep(ctx); err != nil {
			return driver.Errorf(driver.CodeUnknown, "the server still has session %d: %w", id.Conn, err)
		}
	}
}

// Release ends a grant on its own session, or together with the session if that cannot be
// used.
func (e *Sessions) Release(ctx context.Context, g driver.Grant, _ time.Duration) error {
	if err := e.Enter(); err != nil {
		return err
	}
	defer e.Leave()
	_, err := e.releaseTo(ctx, g, nil)
	return err
}

// beginRelease reserves the session of a grant for its release. If it cannot do so, it makes certain
// that the grant has ended at the server, and returns the error of the release.
func (e *Sessions) beginRelease(ctx context.Context, g driver.Grant) (*lease, error) {
	e.mu.Lock()
	l := e.leases[g.ID]
	if l == nil || l.request.Token != g.Token {
		e.mu.Unlock()
		return nil, driver.NotHeld(g.Name, g.Token)
	}
	closed := l.closed
	e.mu.Unlock()
	if closed { // the grant was lost, or the answer to a release was lost
		return nil, e.finish(ctx, l, driver.NotHeld(g.Name, g.Token))
	}
	if !l.tryLock() { // a ping uses the session
		brief, cancel := context.WithTimeout(ctx, busyTimeout)
		locked := l.lock(brief)
		cancel()
		if err := ctx.Err(); !locked && err != nil {
			return nil, e.closedOr(driver.Errorf(driver.CodeUnknown, "the session is busy: %w", err))
		}
		if !locked { // the end of the session frees the lock sooner than the ping ends
			return nil, e.finish(ctx, l, driver.Errorf(driver.CodeUnknown, "the session did not answer in time, and has been ended"))
		}
	}
	e.mu.Lock()
	granted := l.granted
	l.granted = false // from here on, its end is not reported as a loss
	e.mu.Unlock()
	if !granted {
		defer l.unlock()
		return nil, e.finish(ctx, l, driver.NotHeld(g.Name, g.Token))
	}
	return l, nil
}

// mayHaveEnded reports whether the session of a grant has ended, or the server's timer may have
// ended it.
func (e *Sessions) mayHaveEnded(l *lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	elapsed, _ := l.sent.Elapsed()
	return ended(l.s.Link) || elapsed >= l.request.TTL
}

// releaseFailed ends the session of a grant, and returns the error of the release. err is the error of
// Unlock, or nil if the session did not have the grant. mayHaveEnded is from the time before Unlock.
func (e *Sessions) releaseFailed(ctx context.Context, l *lease, mayHaveEnded bool, err error) error {
	missing := driver.NotHeld(l.request.Name, l.request.Token)
	switch {
	case err == nil:
		e.drop(l.s)
		e.forget(l)
		return missing
	case mayHaveEnded || e.recipe.Ended(err):
		return e.finish(ctx, l, missing)
	}
	// The lock is free then. Whether this release has freed it is unknown.
	return e.finish(ctx, l, driver.Errorf(driver.CodeUnknown, "the release was not confirmed, and its session has been ended: %w", err))
}
