package sqlkit

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// RowLocker is a [Recipe] of row locks in open transactions.
//
// Each name has a row. An exclusive grant locks the row alone, and all other grants share
// it. Before a request shares the row, its client ensures, with the row locked, that the
// column permits has its [Kind]. A change of permits locks the row alone. So readers and
// permits, and semaphores of different sizes, never have grants at the same time. They wait
// for one another, although their limits would admit some of them. Each permit also locks a
// row of its own.
//
// The methods return [ErrBusy] if another client's transaction is in the way.
type RowLocker interface {
	// TryRow runs a transaction that requests the row, and waits for it if wait. The
	// transaction stays open if it has the lock. Otherwise TryRow ends it. It returns
	// [ErrKind] if the row is shared as another kind, and does not lock such a row without
	// wait. It returns [ErrRow] if the row did not exist.
	TryRow(ctx context.Context, s *Session, a *LockRequest, wait bool) (Got, error)
	// InsertRow inserts the row, unless it exists.
	InsertRow(ctx context.Context, s *Session, a *LockRequest) error
	// SwitchKind sets the row to the kind of the request. It also returns [ErrBusy] if the
	// row has that kind already.
	SwitchKind(ctx context.Context, s *Session, a *LockRequest) error
}

// NameRows are the rows that a [RowLocker] locks: those of holdfast's table, or of a user's table, which has no
// permits.
type NameRows struct {
	Table, Column string // of the user's table, or empty
	// Key returns a key as a literal of holdfast's table, and Name returns a name as one of the user's table.
	Key, Name func([]byte) string
	// In returns the name of a table with its schema.
	In func(table string) string
}

func (r *NameRows) find(key []byte) (table, column, value string) {
	if r.Table == "" {
		return r.In(NameTable), "name", r.Key(key)
	}
	_, name, _ := bytes.Cut(key, []byte{0})
	return r.In(r.Table), r.Column, r.Name(name)
}

// Own distinguishes a user's table and column from others. It is empty for holdfast's table. A schema and the case of
// the letters make no difference, because they may be two spellings of one table.
func (r *NameRows) Own() string {
	if r.Table == "" {
		return ""
	}
	table := r.Table[strings.LastIndexByte(r.Table, '.')+1:]
	return "\x00" + strings.ToLower(table+"."+r.Column)
}

// Row returns the table and the condition that find a name's row.
func (r *NameRows) Row(key []byte) string {
	table, column, value := r.find(key)
	return fmt.Sprintf("%s WHERE %s = %s", table, column, value)
}

// Insert returns a statement that inserts a name's row, and fails if the row exists.
func (r *NameRows) Insert(key []byte) string {
	table, column, value := r.find(key)
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, column, value)
}

// Permits returns the expression for the kind of a row.
func (r *NameRows) Permits() string {
	if r.Table != "" {
		return "0"
	}
	return "permits"
}

// FitsKind reports whether a request locks the row only if the row has its kind. TryRow then reads the kind
// before.
func (r *NameRows) FitsKind(a *LockRequest, wait bool) bool {
	return !wait && a.Limit != driver.Exclusive && r.Table == ""
}

// Missed ends a transaction that has got no row, and returns the error of TryRow. before is the kind that TryRow
// has read, if FitsKind.
func (r *NameRows) Missed(ctx context.Context, s *Session, a *LockRequest, wait bool, before Row) error {
	answers, err := s.Run(ctx, "ROLLBACK", "SELECT "+r.Permits()+" FROM "+r.Row(a.Key))
	row := answers.Last()
	if r.FitsKind(a, wait) {
		row = before // it may have changed since
	}
	switch {
	case err != nil:
		return err
	case row == nil || wait: // a waiter would have got a row that existed
		return ErrRow
	case r.FitsKind(a, wait) && row.Int(0) != int64(Kind(a.Limit)):
		return ErrKind
	}
	return ErrBusy
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
	// ErrRow is the error of a [RowLocker] for a missing row. [LockRow] returns it if another
	// client deletes rows as fast as they are inserted.
	ErrRow = driver.Errorf(driver.CodeRefused, "the row of the name goes away again and again")
)

const (
	// mostMissing is how often LockRow finds no row, without a wait, before it gives up.
	mostMissing = 5
	// mostTries is how often a request that does not wait tries a row again that it has inserted or switched. It
	// tries a row that it could not switch only kindTries times, because most such rows have a holder.
	mostTries, kindTries = 5, 2
)

// LockRow implements Lock for a recipe of row locks. It polls for semaphores with a backoff
// of 5 to 100 ms, since a server does not queue for any one of several rows. It also polls
// for a row that is not committed yet, since a server does not queue for such a row.
//
// A client that inserts a row or switches its kind locks the row for a moment. A request that does not wait, and
// had to do that itself, has met other such clients. So it tries again, instead of taking them for holders, unless
// its context may end before.
func LockRow(ctx context.Context, r RowLocker, s *Session, a *LockRequest) (Got, error) {
	wait := a.Wait && (a.Limit == driver.Exclusive || a.Limit == driver.Unlimited)
	poll := backoff.Backoff{First: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	most := 0 // how often a request that does not wait tries again
	prepare := func(step func(context.Context, *Session, *LockRequest) error) error {
		brief, cancel := answerTimeout(ctx, a.Wait)
		defer cancel()
		err := step(brief, s, a)
		if err == nil {
			most = mostTries
		}
		return err
	}
	for tries, missing := 0, 0; ; {
		brief, cancel := answerTimeout(ctx, a.Wait && !wait)
		got, err := r.TryRow(brief, s, a, wait)
		cancel()
		locked := err == nil
		switch err {
		case ErrKind:
			most = max(most, kindTries)
			err = prepare(r.SwitchKind)
		case ErrRow:
			if missing++; missing < mostMissing {
				err = prepare(r.InsertRow)
			} else if wait { // there may be nothing to queue for
				err = ErrBusy
			}
		}
		if err == nil && !locked {
			continue
		}
		switch {
		case err != error(ErrBusy):
			return got, err
		case a.Wait:
			missing = 0
			a.Waiting()
		case a.First || tries >= most || endsWithin(ctx, poll.Max):
			return got, err
		}
		tries++
		if err := poll.Sleep(ctx); err != nil {
			return got, driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
}

func endsWithin(ctx context.Context, d time.Duration) bool {
	deadline, limited := ctx.Deadline()
	return limited && time.Until(deadline) < d
}

// AnswerWithin is the timeout of a waiter's statements that do not wait for a lock. A
// waiter's context has no deadline, and a connection may have fallen silent.
const AnswerWithin = 5 * time.Second

// answerTimeout returns the context of a statement that does not wait for a lock: ctx, with the timeout
// AnswerWithin if the request waits.
func answerTimeout(ctx context.Context, waits bool) (context.Context, context.CancelFunc) {
	if !waits {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, AnswerWithin)
}
