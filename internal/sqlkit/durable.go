package sqlkit

import (
	"context"
	"time"
)

// DurableToken returns got, the grant of a session that has the lock. If the tokens are durable, it
// returns the grant of commit instead, with the tokens that commit has committed to the database. If
// commit fails, the engine releases the lock or ends the session, so the request has no effect. If
// the server does not confirm that within cancelTimeout, the error has CodeUnknown.
//
// During commit the session has the lock, and other clients wait for it. If a user's pool
// has no connection left for commit, two requests could wait for each other. So the timeout
// of commit is a third of the TTL, at most 5 s.
func DurableToken(ctx context.Context, a *LockRequest, got Got, commit func(context.Context) (Got, error)) (Got, error) {
	if !a.Durable {
		return got, nil
	}
	brief, cancel := context.WithTimeout(ctx, min(a.TTL/3, 5*time.Second))
	defer cancel()
	got, err := commit(brief)
	if err != nil {
		return Got{}, &lockedError{err}
	}
	return got, nil
}

// lockedError is the error of a request whose session has the lock.
type lockedError struct{ error }

func (e *lockedError) Unwrap() error { return e.error }
