package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// RowLocker is a [Recipe] of row locks. Each name has a row. An exclusive grant locks the
// row alone. All other grants share the row, once a session has locked it and set it to
// their [Kind].
type RowLocker interface {
	// TryRow requests the row, and waits for it if wait. It returns [ErrKind] if the row is
	// shared as another kind. It returns [ErrRow] if the row did not exist: by now TryRow
	// or another client has inserted it, and the engine tries again.
	TryRow(ctx context.Context, s *Session, a *LockRequest, wait bool) (Got, error)
	// SwitchKind sets the row to the kind of the request, or returns [ErrBusy] if the row
	// is locked.
	SwitchKind(ctx context.Context, s *Session, a *LockRequest) error
}

// Kind returns the kind of a row that a request shares: 0 for readers, n for a semaphore of
// n.
func Kind(limit int) int {
	if limit > driver.MaxLimit {
		return 0
	}
	return limit
}

var (
	// ErrKind is the error of a [RowLocker] for a row that is shared as another kind.
	ErrKind = driver.Errorf(driver.CodeBusy, "the name is locked in another mode")
	// ErrRow is the error of a [RowLocker] for a missing row. If it repeats, another client
	// deletes rows as fast as they are inserted.
	ErrRow = driver.Errorf(driver.CodeRefused, "the row of the name goes away again and again")
)

// LockRow implements Lock for a recipe of row locks. It polls for semaphores with a backoff
// of 5 to 100 ms, since a server does not queue for any one of several rows. It also polls
// for a row that is not committed yet, since a server does not queue for such a row.
func LockRow(ctx context.Context, r RowLocker, s *Session, a *LockRequest) (Got, error) {
	queues := a.Limit == driver.Exclusive || a.Limit == driver.Unlimited
	poll := backoff.Backoff{First: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for {
		got, err := lockExistingRow(ctx, r, s, a, a.Wait && queues)
		if err == ErrKind {
			brief, cancel := answerTimeout(ctx, a.Wait)
			err = r.SwitchKind(brief, s, a)
			cancel()
			if err == nil {
				continue
			}
		}
		if err != error(ErrBusy) || !a.Wait {
			return got, err
		}
		a.Waiting()
		if err := poll.Sleep(ctx); err != nil {
			return got, driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
}

// lockExistingRow calls TryRow until the row exists.
func lockExistingRow(ctx context.Context, r RowLocker, s *Session, a *LockRequest, wait bool) (got Got, err error) {
	for range 5 {
		brief, cancel := answerTimeout(ctx, a.Wait && !wait)
		got, err = r.TryRow(brief, s, a, wait)
		cancel()
		if err != ErrRow {
			return got, err
		}
	}
	if wait {
		// There may be nothing to queue for, because other clients keep the row from being
		// inserted. The waiter polls.
		err = ErrBusy
	}
	return got, err
}
