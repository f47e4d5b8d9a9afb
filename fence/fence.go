package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

// The errors of this package. Every error it makes wraps one of them.
var (
	// ErrStale: the resource has seen a larger token, and the error is a [*StaleError]; or the
	// token is 0, which holdfast.Token returns after a loss, and the error is a [*TokenError].
	// Nothing was written. Stop the work: another holder has the lock, or may have it.
	ErrStale = errors.New("fence: stale token")
	// ErrInvalid: an argument is outside its limits. Nothing was tried. For a
	// token the error is a [*TokenError].
	ErrInvalid = errors.New("fence: invalid argument")
	// ErrMissing: a request carries no token.
	ErrMissing = errors.New("fence: no token")
	// ErrUnavailable: the guard itself failed, or the context ended first. It
	// also wraps the reason. Unless the message states otherwise nothing was
	// written.
	ErrUnavailable = errors.New("fence: guard unavailable")
	// ErrCorrupt: the guard's token record cannot be read. The guard refuses every
	// token, because without the record it cannot recognise a stale one.
	ErrCorrupt = errors.New("fence: corrupt token record")
	// ErrNotExist: the row of a [Column], or the object whose token [Objects] should
	// raise, does not exist.
	ErrNotExist = errors.New("fence: the guarded row or object does not exist")
	// ErrUnsupported: this guard does not work on this system or file system.
	ErrUnsupported = errors.New("fence: unsupported")
)

// Guard refuses the writes of holders that a newer holder has replaced. W is the type of a
// write: a function for [Memory] and [SQL], the new content for [Files] and [Objects], commands
// or operations for Redis, etcd and ZooKeeper. To guard a resource of your own, implement
// Guard; package fencetest tests the implementation.
//
// Resource is valid UTF-8, 1 to 512 bytes, no NUL, and compares byte by byte. Token is
// at least 1 and below 2^63. Errors of all methods wrap [ErrStale], [ErrInvalid],
// [ErrUnavailable] or another error of this package.
type Guard[W any] interface {
	// Write compares token with the high-water mark of resource, the largest token seen
	// for it. If token is smaller, Write returns a [*StaleError] and writes nothing.
	// Otherwise it raises the mark to token and does the write. No other write or raise
	// of that resource comes between the comparison and the end of the write.
	Write(ctx context.Context, resource string, token uint64, write W) error
	// Raise is Write without a write. A holder that reads the resource and then writes
	// a result calls Raise before it reads: from then on the guard refuses its
	// predecessors.
	Raise(ctx context.Context, resource string, token uint64) error
	// Newest returns the high-water mark of resource, 0 if it has none. When it returns,
	// the mark may already be larger.
	Newest(ctx context.Context, resource string) (uint64, error)
}

// Func is the write of a guard that runs a function within its critical section. Its
// context derives from that of Write and may carry more: see [Tx]. An error of the
// function is returned unchanged.
type Func = func(context.Context) error

// Verify refuses a token smaller than the high-water mark of resource, and changes nothing. A
// reader under a shared lock calls it after it has read. If Verify returns nil, no newer holder
// had written what was read. Readers must not call Raise or Write. Several readers hold the
// lock at a time, and the reader with the largest token would make the guard refuse the others.
// Newer is any [Guard]. Errors are those of Guard.
func Verify(ctx context.Context, newer interface {
	Newest(ctx context.Context, resource string) (uint64, error)
}, resource string, token uint64) error {
	if err := CheckArguments(ctx, resource, token); err != nil {
		return err
	}
	newest, err := newer.Newest(ctx, resource)
	if err == nil && token < newest {
		err = &StaleError{Resource: resource, Token: token, Newest: newest}
	}
	return err
}

// Slot returns the name under which to guard one permit of a semaphore: a later holder
// of that slot has a larger token, and holders of other slots do not matter. Slot is
// [holdfast.Lock.Slot]. A negative slot, which a lock without permits has, gives the
// empty name, and every guard refuses that.
//
// [holdfast.Lock.Slot]: https://pkg.go.dev/github.com/holdfast-go/holdfast#Lock.Slot
func Slot(resource string, slot int) string {
	if slot < 0 {
		return ""
	}
	return resource + "#" + strconv.Itoa(slot)
}

// StaleError is a refused write. It wraps [ErrStale].
type StaleError struct {
	// Resource is the resource that the caller tried to write.
	Resource string
	// Token is the write's token. Newest is the largest token that the guard has seen.
	Token, Newest uint64
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: %q has seen token %d, this write carries %d: a newer holder is at work",
		ErrStale, e.Resource, e.Newest, e.Token)
}

// Unwrap returns [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// TokenError is a number that no grant carries. It wraps [ErrInvalid], and for token 0 also
// [ErrStale].
type TokenError struct{ Token uint64 }

func (e *TokenError) Error() string {
	s := fmt.Sprintf("%v: token %d, want 1 to %d", ErrInvalid, e.Token, uint64(driver.MaxToken-1))
	if e.Token == 0 {
		// The usual reason: holdfast.Token(ctx, name) returned 0.
		s += " (0 means that the context carries no live lock of that name: it was lost or released, or never acquired)"
	}
	return s
}

// Unwrap returns the errors that e wraps.
func (e *TokenError) Unwrap() []error {
	if e.Token == 0 {
		return []error{ErrInvalid, ErrStale}
	}
	return []error{ErrInvalid}
}

// Parse reads a token from its decimal form, as a header or the variable
// HOLDFAST_TOKEN carries it: digits only, no sign, no space, no leading zero.
// Errors wrap [ErrInvalid].
func Parse(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	// ParseUint accepts a leading zero. One number has one form here, so that all
	// tools agree about it.
	if err != nil || (len(s) > 1 && s[0] == '0') {
		if len(s) > 40 {
			s = s[:40] + "..."
		}
		return 0, fmt.Errorf("%w: token %q, want a decimal number from 1 to %d", ErrInvalid, s, uint64(driver.MaxToken-1))
	}
	if err := checkToken(n); err != nil {
		return 0, err
	}
	return n, nil
}

func checkToken(token uint64) error {
	if token == 0 || token >= driver.MaxToken {
		return &TokenError{Token: token}
	}
	return nil
}

// CheckArguments returns the error with which every guard refuses a bad resource or
// token, or a context that has ended, before any I/O. It is for implementations of
// [Guard]. Errors wrap [ErrInvalid] or [ErrUnavailable].
func CheckArguments(ctx context.Context, resource string, token uint64) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	if err := checkToken(token); err != nil {
		return err
	}
	return ended(ctx, resource)
}

func checkResource(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: resource is empty, want 1 to %d bytes", ErrInvalid, driver.MaxName)
	case len(s) > driver.MaxName:
		return fmt.Errorf("%w: resource has %d bytes, want 1 to %d", ErrInvalid, len(s), driver.MaxName)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: resource %q is not valid UTF-8", ErrInvalid, s)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%w: resource %q contains NUL", ErrInvalid, s)
	}
	return nil
}

// ended returns an error if ctx ended before anything was written, else nil. The
// error wraps both the context's error and its cause: the cause of a lock's
// context is the reason of the loss.
//
// Guards check the context again just before they write. The context of a paused process may
// have ended long ago. The check is cheap compared with a write that the resource would
// probably refuse.
func ended(ctx context.Context, resource string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
		return fmt.Errorf("%w: %q: nothing written: %w: %w", ErrUnavailable, resource, err, cause)
	}
	return fmt.Errorf("%w: %q: nothing written: %w", ErrUnavailable, resource, err)
}
