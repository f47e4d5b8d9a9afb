package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The errors of this package; test for them with [errors.Is].
var (
	// ErrBusy: another holder has the name, or a waiter comes before the caller.
	ErrBusy = errors.New("busy")
	// ErrLost: the lock ended before it was unlocked.
	ErrLost = errors.New("lock lost")
	// ErrUnavailable: the store could not be reached or did not answer.
	ErrUnavailable = errors.New("store unavailable")
	// ErrRefused: the store said no, and repeating the request would not help.
	ErrRefused = errors.New("refused by the store")
	// ErrUnsupported: the store cannot do this.
	ErrUnsupported = errors.New("not supported by the store")
	// ErrInvalid: the input is wrong. This is found before any I/O.
	ErrInvalid = errors.New("invalid")
	// ErrSelfDeadlock: the context already holds the name, so the caller would wait for
	// itself.
	ErrSelfDeadlock = errors.New("already held by this context")
	// ErrNotHeld: the name has no grant with that token.
	ErrNotHeld = errors.New("not held")
	// ErrReleased is the cause of a lock's context after Unlock.
	ErrReleased = errors.New("lock released")
	// ErrHoldLimit is the cause of a lock's context after MaxHold.
	ErrHoldLimit = errors.New("maximum hold reached")
	// ErrClosed: the Locker or its store has been closed.
	ErrClosed = errors.New("closed")
)

// Cause is why a lock was lost.
type Cause = driver.Cause

// The causes of a loss.
const (
	CauseExpired      = driver.CauseExpired
	CauseTaken        = driver.CauseTaken
	CauseSessionEnded = driver.CauseSessionEnded
	CauseGone         = driver.CauseGone
	CauseSlept        = driver.CauseSlept
	CauseClosed       = driver.CauseClosed
)

// BusyError reports that the name is held. It matches [ErrBusy] and, after a wait, the
// error of the context.
type BusyError struct {
	Name, Store string
	// Holders are those that the store named, possibly none.
	Holders []Holder
	// Err is what ended the wait, nil if the caller did not wait.
	Err error
}

func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "holdfast: %q on %s: busy", e.Name, e.Store)
	if len(e.Holders) > 0 {
		h := e.Holders[0]
		fmt.Fprintf(&b, ", held by pid %d on %s", h.PID, h.Host)
		if h.Reason != "" {
			fmt.Fprintf(&b, " (%s)", h.Reason)
		}
		if more := len(e.Holders) - 1; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Is reports whether target is ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

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
	// Err is the store's error, if there was one.
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
	return b.String()
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the error of the work and that of the store.
func (e *LostError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Work, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
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
	return b.String()
}

func (e *failure) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.kind, e.err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

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

// explain turns a store's error into one for the caller. If the caller's context has
// ended, an error that only reports that is not the store's.
func (l *Locker) explain(ctx context.Context, name string, err error) error {
	code := l.store.Classify(err)
	if code == driver.CodeBusy {
		busy := &BusyError{Name: name, Store: l.where}
		if b, ok := errors.AsType[*driver.BusyError](err); ok {
			busy.Holders = b.Holders
		}
		return busy
	}
	if (code == driver.CodeUnknown || code == driver.CodeWithdrawn) && ctx.Err() != nil {
		return &failure{name: name, store: l.where, err: contextError(ctx)}
	}
	return &failure{name: name, store: l.where, kind: kinds[code], err: err}
}

// contextError returns what ended a context: its error and, if that says more, its
// cause.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || cause == err {
		return err
	}
	if errors.Is(cause, ErrBusy) {
		// It is about another lock, and no answer about this one.
		return fmt.Errorf("%w (%v)", err, cause)
	}
	return fmt.Errorf("%w (%w)", err, cause)
}
