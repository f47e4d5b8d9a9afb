package sqlkit

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// RowLocker is what a [Recipe] of row locks is made of: a row per name, which exclusive
// grants lock for themselves and all others share. Who shares it has made sure, with
// the row locked, that it says what it is shared as: [Kind].
type RowLocker interface {
	// TryRow asks for the row, and waits for it if wait. [ErrKind] is the answer that
	// it is shared as something else, and [ErrRow] that it was not there: it is now, or
	// somebody else has made it meanwhile, and it is asked for again.
	TryRow(ctx context.Context, s *Session, a *Ask, wait bool) (Got, error)
	// SwitchKind makes the row what the request shares it as, if nobody has it;
	// [ErrBusy] if somebody has.
	SwitchKind(ctx context.Context, s *Session, a *Ask) error
}

// Kind is what a name's row must say for a request that shares it: 0 for readers, n for
// a semaphore of n.
func Kind(limit int) int {
	if limit > driver.MaxLimit {
		return 0
	}
	return limit
}

var (
	// ErrKind is the answer of a [RowLocker] that the row is shared as something else.
	ErrKind = driver.Errorf(driver.CodeBusy, "the name is locked in another mode")
	// ErrRow is the answer of a [RowLocker] that there was no row. If it goes on, somebody
	// deletes rows as fast as they are inserted.
	ErrRow = driver.Errorf(driver.CodeRefused, "the row of the name goes away again and again")
)

// LockRow is the Lock of a recipe of row locks. Semaphores are asked for again and
// again, 5 to 100 ms apart: a server does not queue for any one of several rows. So is
// a row that the server does not queue for because it is not there for all to see.
func LockRow(ctx context.Context, r RowLocker, s *Session, a *Ask) (Got, error) {
	queues := a.Limit == driver.Exclusive || a.Limit == driver.Unlimited
	for tries := 0; ; tries++ {
		got, err := tryRow(ctx, r, s, a, a.Wait && queues)
		if err == ErrKind {
			if err = switchKind(ctx, r, s, a); err == nil {
				continue
			}
		}
		if err != error(ErrBusy) || !a.Wait {
			return got, err
		}
		a.Waiting()
		if err := sleep(ctx, pollPause(tries)); err != nil {
			return got, driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
}

// tryRow asks until there is a row.
func tryRow(ctx context.Context, r RowLocker, s *Session, a *Ask, wait bool) (got Got, err error) {
	for range 5 {
		if got, err = try(ctx, r, s, a, wait); err != ErrRow {
			return got, err
		}
	}
	if wait {
		// It may be that nothing is there to queue for, as where others keep the row from
		// being made: the waiter asks again and again.
		err = ErrBusy
	}
	return got, err
}

// AnswerWithin bounds what a waiter asks that waits for nothing at the server. Its
// context has no end of its own, and a connection may have fallen silent.
const AnswerWithin = 10 * time.Second

func try(ctx context.Context, r RowLocker, s *Session, a *Ask, wait bool) (Got, error) {
	if a.Wait && !wait {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, AnswerWithin)
		defer cancel()
	}
	return r.TryRow(ctx, s, a, wait)
}

func switchKind(ctx context.Context, r RowLocker, s *Session, a *Ask) error {
	if a.Wait {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, AnswerWithin)
		defer cancel()
	}
	return r.SwitchKind(ctx, s, a)
}

// pollPause doubles from 5 to 100 ms, with jitter.
func pollPause(tries int) time.Duration {
	d := min(5*time.Millisecond<<min(tries, 5), 100*time.Millisecond)
	return d/2 + rand.N(d/2+1)
}
