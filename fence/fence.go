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
	// ErrStale: the resource has seen a larger token, and nothing was written.
	// The error is a [*StaleError]. Stop the work: another holder has the lock.
	ErrStale = errors.New("fence: stale token")
	// ErrInvalid: an argument is outside its limits. Nothing was tried. For a
	// token the error is a [*TokenError].
	ErrInvalid = errors.New("fence: invalid argument")
	// ErrMissing: a request carries no token.
	ErrMissing = errors.New("fence: no token")
	// ErrUnavailable: the guard itself failed, or the context ended first. It
	// also wraps the reason. Unless the message says otherwise nothing was
	// written.
	ErrUnavailable = errors.New("fence: guard unavailable")
	// ErrCorrupt: the guard's token record cannot be read. The guard refuses every
	// token, because without the record it cannot recognise a stale one.
	ErrCorrupt = errors.New("fence: corrupt token record")
	// ErrNoRow: the row that [Column] should guard does not exist.
	ErrNoRow = errors.New("fence: no such row")
	// ErrUnsupported: this guard does not work on this system or file system.
	ErrUnsupported = errors.New("fence: unsupported")
)

// Guard runs writes to resources, and refuses those of holders that a newer holder
// has replaced. [Memory] is a Guard and [SQL.Guard] returns one. [File] and [SQL]
// have methods of their own that fit their resource better.
type Guard interface {
	// Do compares token with the largest one seen for resource. If token is
	// smaller, Do returns a [*StaleError] and does not call write. Otherwise it
	// records the token and calls write. No other write of that resource begins
	// until write has returned, whatever its token. In this sense the comparison,
	// the record and the write are atomic.
	//
	// The context given to write comes from ctx and may carry more, such as a
	// transaction. A nil write only raises the token. An error of write is
	// returned unchanged.
	//
	// Resource is valid UTF-8, 1 to 512 bytes, no NUL, and compares byte by byte.
	// Token is at least 1 and below 2^63. Errors wrap [ErrStale], [ErrInvalid] or
	// [ErrUnavailable].
	Do(ctx context.Context, resource string, token uint64, write func(context.Context) error) error
}

// StaleError is a refused write. It wraps [ErrStale].
type StaleError struct {
	// Resource is the resource that the caller tried to write.
	Resource string
	// Token is the write's token, Newest the largest one that the guard has seen.
	Token, Newest uint64
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: %q has seen token %d, this write carries %d: a newer holder is at work",
		ErrStale, e.Resource, e.Newest, e.Token)
}

// Unwrap returns [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// TokenError is a number that no grant carries. It wraps [ErrInvalid].
type TokenError struct{ Token uint64 }

func (e *TokenError) Error() string {
	s := fmt.Sprintf("%v: token %d, want 1 to %d", ErrInvalid, e.Token, uint64(driver.MaxToken-1))
	if e.Token == 0 {
		// The usual reason: holdfast.Token(ctx, name) returned 0.
		s += " (0 means that the context carries no live lock of that name)"
	}
	return s
}

// Unwrap returns [ErrInvalid].
func (e *TokenError) Unwrap() error { return ErrInvalid }

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

// check validates the arguments of every guard, before any I/O.
func check(resource string, token uint64) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	return checkToken(token)
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
// Guards check the context again just before they write. The context of a paused
// process may have ended long ago, and the check is cheap compared with a write
// that the resource would probably refuse.
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
