package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// DurableToken replaces the tokens of a lock by those that commit has committed to the
// database. If commit fails, the recipe clears the session, so the request has no effect. If
// the server does not confirm that within cancelTimeout, the error has CodeUnknown.
//
// During commit the session has the lock, and other clients wait for it. If a user's pool
// has no connection left for commit, two requests could wait for each other. So the timeout
// of commit is a third of the TTL, at most 5 s.
func DurableToken(ctx context.Context, r Recipe, s *Session, a *LockRequest, got Got, commit func(context.Context) (Got, error)) (Got, error) {
	brief, cancel := context.WithTimeout(ctx, min(a.TTL/3, 5*time.Second))
	durable, err := commit(brief)
	cancel()
	if err != nil {
		return got, clearAfter(ctx, r, s, err)
	}
	return durable, nil
}

// clearAfter clears the session after err, and returns the error of the request.
func clearAfter(ctx context.Context, r Recipe, s *Session, err error) error {
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	if cerr := r.Clear(brief, s); cerr != nil {
		// Neither error is wrapped: an error of a link does not prove the state of the lock.
		return driver.Errorf(driver.CodeUnknown, "%v, and the server has not confirmed that the lock is given back: %v", err, cerr)
	}
	// The session is clear: the outcome of the request is known, even if that of commit is not.
	if coded, again := r.Sort(err); !again && driver.CodeOf(coded) == driver.CodeUnknown {
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	return err
}
