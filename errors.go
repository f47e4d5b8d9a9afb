package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// The errors of this package; test for them with [errors.Is]. An acquisition that was cancelled
// by the caller's context matches [context.Canceled], and neither ErrBusy nor ErrUnavailable.
// After a deadline it matches [context.DeadlineExceeded]. It then also matches ErrBusy if the
// store has answered that the name is held, else ErrUnavailable.
var (
	// ErrBusy: another holder has the name, or a waiter comes before the caller. The
	// caller does something else, or waits longer. [BusyError] has the holders.
	ErrBusy = errors.New("busy")
	// ErrLost: the lock ended before it was unlocked, and another process may have held
	// the name since. The caller discards or verifies what it did last, and may acquire
	// the lock again. [LostError] has the cause.
	ErrLost = errors.New("lock lost")
	// ErrUnavailable: the store could not be reached or did not answer in time, or the process
	// has no connection left for the request. The caller tries again with a backoff: the next
	// request may succeed. A request that may have arrived is rolled back in the background.
	ErrUnavailable = errors.New("store unavailable")
	// ErrRefused: the store refused the request, for example for missing rights, a wrong
	// password, a full disk or a server that is read-only. Repeating the request does not help
	// until an operator, or a failover, has changed the store.
	ErrRefused = errors.New("refused by the store")
	// ErrUnsupported: the store cannot do this, see [Guarantees]. The caller needs
	// another option or another store.
	ErrUnsupported = errors.New("not supported by the store")
	// ErrInvalid: the input is wrong. The Locker reports it before any I/O. The calling code
	// has to be corrected.
	ErrInvalid = errors.New("invalid")
	// ErrSelfDeadlock: the context already holds the name, so the caller would wait for
	// itself. The caller passes [Reentrant] to join the lock, or the context of NewOwner
	// to a goroutine of its own.
	ErrSelfDeadlock = errors.New("already held by this context")
	// ErrNotHeld: the name has no grant with that token. There is nothing to break any
	// more.
	ErrNotHeld = errors.New("not held")
	// ErrReleased is the cause of a lock's context after Unlock. Unlock does not wait for work
	// that still runs.
	ErrReleased = errors.New("lock released")
	// ErrHoldLimit is the cause of a lock's context after MaxHold. The work took longer
	// than it may; the lock is not renewed and ends with its TTL, or with Unlock.
	ErrHoldLimit = errors.New("maximum hold reached")
	// ErrClosed: the Locker or its store has been closed. The process is ending, or
	// uses a Locker after its end.
	ErrClosed = errors.New("closed")
	// ErrMissed: no replica has served a tick of Every to its end. The caller logs it, or
	// repeats the work if the next tick does not include it.
	ErrMissed = errors.New("tick missed")
)

// Cause is why a lock was lost.
type Cause = driver.Cause

// The causes of a loss. After each of them another process may hold the name. So the caller
// stops the work, and does not count on what it wrote without a fencing token.
const (
	// CauseExpired: the lease could not be renewed in time. The store or the network was
	// away for most of the TTL, or the process was paused or too busy to renew. If the
	// store was well, raise the TTL.
	CauseExpired = driver.CauseExpired
	// CauseTaken: an operator broke the lock, or requested its end. Do not acquire
	// it again at once: the operator has a reason.
	CauseTaken = driver.CauseTaken
	// CauseSessionEnded: the session or the connection that carried the grant has ended,
	// by a restart or a failover of the server, an administrator, or the network.
	// Acquire the lock again.
	CauseSessionEnded = driver.CauseSessionEnded
	// CauseGone: the store no longer has the grant. Its data was deleted, or a
	// failover lost the latest writes. Acquire the lock again, and look at how the store
	// is run: on such a store only the token is safe.
	CauseGone = driver.CauseGone
	// CauseSlept: the machine was suspended for longer than the lease. Acquire the lock
	// again.
	CauseSlept = driver.CauseSlept
	// CauseClosed: Close was called while the lock was held. Let the work end before
	// Close.
	CauseClosed = driver.CauseClosed
)

// BusyError reports that the name is held. It matches [ErrBusy] and, after a deadline,
// [context.DeadlineExceeded]. If the caller's context was cancelled while the name was
// held, it matches what ended the context, and not ErrBusy.
type BusyError struct {
	Name, Store string
	// Holders are the holders that the store named, possibly none.
	Holders []Holder
	// Err is what ended the wait, nil if the caller did not wait.
	Err error
}

func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "holdfast: %q on %s: busy", e.Name, e.Store)
	if len(e.Holders) > 0 {
		h := e.Holders[0]
		fmt.Fprintf(&b, ", held by %s", printable.Escape(h.Client()))
		if h.Reason != "" {
			fmt.Fprintf(&b, " (%s)", printable.Escape(h.Reason))
		}
		if more := len(e.Holders) - 1; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return printable.Line(b.String())
}

// Is reports whether target is ErrBusy, and the caller was not cancelled.
func (e *BusyError) Is(target error) bool {
	return target == ErrBusy && !errors.Is(e.Err, context.Canceled)
}

// Unwrap returns what ended the wait.
func (e *BusyError) Unwrap() error { return e.Err }

// LostError reports that a lock ended before it was unlocked. It matches [ErrLost], and
// the error of the work done under the lock.
type LostError struct {
	Name, Store string
	Token       uint64
	Cause       Cause
	// Work is the error of the function that ran under the lock, if it had one
	// of its own.
	Work error
	// Err is the store's error, if there was one. After CauseExpired it is that of the last renewal.
	Err error
}

func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "holdfast: %q on %s: lock lost (%s), token %d", e.Name, e.Store, e.Cause, e.Token)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Work != nil {
		fmt.Fprintf(&b, "; the work said: %v", e.Work)
	}
	return printable.Line(b.String())
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the work's error and the store's error.
func (e *LostError) Unwrap() []error { return withoutNil(e.Work, e.Err) }

func withoutNil(errs ...error) []error {
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// failure adds the name, the store and one of the sentinel errors to an error.
type failure struct {
	name, store string
	kind        error // a sentinel error, or nil
	err         error // the detail, or nil
}

func (e *failure) Error() string {
	var b strings.Builder
	b.WriteString("holdfast: ")
	if e.name != "" {
		fmt.Fprintf(&b, "%q", e.name)
		if e.store != "" {
			fmt.Fprintf(&b, " on %s", e.store)
		}
		b.WriteString(": ")
	} else if e.store != "" {
		b.WriteString(e.store + ": ")
	}
	switch {
	case e.kind != nil && e.err != nil:
		fmt.Fprintf(&b, "%v: %v", e.kind, e.err)
	case e.kind != nil:
		b.WriteString(e.kind.Error())
	default:
		b.WriteString(e.err.Error())
	}
	return printable.Line(b.String())
}

func (e *failure) Unwrap() []error { return withoutNil(e.kind, e.err) }

func invalid(format string, args ...any) error {
	return &failure{kind: ErrInvalid, err: fmt.Errorf(format, args...)}
}

// kinds maps the store's codes to the errors that callers test for.
var kinds = map[driver.Code]error{
	driver.CodeUnknown:     ErrUnavailable,
	driver.CodeBusy:        ErrBusy,
	driver.CodeWithdrawn:   ErrUnavailable,
	driver.CodeNotHeld:     ErrNotHeld,
	driver.CodeUnavailable: ErrUnavailable,
	driver.CodeRefused:     ErrRefused,
	driver.CodeUnsupported: ErrUnsupported,
	driver.CodeInvalid:     ErrInvalid,
	driver.CodeClosed:      ErrClosed,
}

// unanswered returns the error of a wait that has ended before the store has answered: why the
// wait ended, and the last error of the store. For a cancelled caller, only the text contains
// the store's error, because the caller itself ended the wait.
func (l *Locker) unanswered(name string, ended, last error) error {
	if errors.Is(ended, context.Canceled) {
		return &failure{name: name, store: l.where, err: fmt.Errorf("%w: %v", ended, last)}
	}
	return &failure{name: name, store: l.where, kind: ErrUnavailable, err: fmt.Errorf("%w: %w", ended, last)}
}

// explain turns a store's error into one for the caller. If the caller's context has
// ended, an error that only reports that is not the store's.
func (l *Locker) explain(ctx context.Context, name string, err error) error {
	code := l.store.Classify(err)
	if code == driver.CodeBusy {
		return &BusyError{Name: name, Store: l.where, Holders: holdersOf(err)}
	}
	if (code == driver.CodeUnknown || code == driver.CodeWithdrawn) && ctx.Err() != nil {
		return &failure{name: name, store: l.where, err: contextError(ctx)}
	}
	return &failure{name: name, store: l.where, kind: kinds[code], err: err}
}

// contextError returns what ended a context: its error and, if that has more detail, its
// cause.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || cause == err {
		return err
	}
	if errors.Is(cause, ErrBusy) {
		// The cause concerns another lock: it is no answer about this one.
		return fmt.Errorf("%w (%v)", err, cause)
	}
	return fmt.Errorf("%w (%w)", err, cause)
}
