package optimistic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Values keeps data under keys, with versions. Every store of holdfast except Redlock implements
// it; holdfast.Locker.Values returns those of a Locker. For a store of your own, implement its two methods, Get and Put.
//
// A key is valid UTF-8, 1 to 512 bytes, no NUL. Data has at most 512 KiB.
type Values = driver.Values

// The errors of this package. It also returns these errors of package holdfast: ErrInvalid,
// ErrUnavailable, ErrRefused, ErrUnsupported, ErrClosed.
var (
	// ErrConflict: the value has another version. Nothing was written.
	ErrConflict = errors.New("optimistic: the value has another version")
	// ErrUnknown: the answer to a write was lost. The value may have been written, or may
	// still be. Read it to find out.
	ErrUnknown = errors.New("optimistic: the outcome of a write is unknown")
	// ErrNotExist: the row does not exist.
	ErrNotExist = errors.New("optimistic: no such row")
)

// Get returns the data of a key and its version. A key that was never written has no data
// and the version "". Versions of different keys cannot be compared, and versions have no
// order.
func Get(ctx context.Context, v Values, key string) (data []byte, version string, err error) {
	if err := driver.CheckValue(key, nil); err != nil {
		return nil, "", wrap(err)
	}
	data, version, err = v.Get(ctx, key)
	return data, version, wrap(err)
}

// Put writes data if version is still that of the key, and returns the new version. The version
// of a key that was never written is "". Errors wrap [ErrConflict], [ErrUnknown] or an error of
// package holdfast.
func Put(ctx context.Context, v Values, key string, data []byte, version string) (string, error) {
	if err := driver.CheckValue(key, data); err != nil {
		return "", wrap(err)
	}
	next, err := v.Put(ctx, key, data, version)
	return next, wrap(err)
}

// Update replaces the data of a key by the result of f. If another write came between, Update
// calls f again with the newer data, until ctx ends. The argument old is nil for a key that was
// never written. The function f must have no effect except its result, because it may run several
// times. If f fails, Update returns its error unchanged, and nothing is written.
//
// Between two attempts Update waits for a random time below a limit that doubles: see
// [Backoff]. Errors wrap [ErrUnknown], an error of package holdfast, or both [ErrConflict] and
// the context's error if ctx ended after a conflict.
func Update(ctx context.Context, v Values, key string, f func(ctx context.Context, old []byte) ([]byte, error), o ...Option) error {
	if err := driver.CheckValue(key, nil); err != nil {
		return wrap(err)
	}
	return repeat(ctx, key, o, func() error {
		old, version, err := v.Get(ctx, key)
		if err != nil {
			return wrap(err)
		}
		data, err := f(ctx, old)
		if err != nil {
			return callerError{err}
		}
		_, err = Put(ctx, v, key, data, version)
		return err
	})
}

// Conflict is an attempt of an update that another write has overtaken.
type Conflict struct {
	// Key is the key of the value or row.
	Key string
	// Attempt counts the conflicts of one update, from 1.
	Attempt int
	// Backoff is how long the update waits before the next attempt.
	Backoff time.Duration
}

// Option is a setting of an update.
type Option func(*settings)

type settings struct {
	first, largest time.Duration // the limits of the wait: see Backoff
	onConflict     []func(context.Context, Conflict)
}

// Backoff sets the limit of the wait after the first conflict, and the largest limit. The limit
// doubles after each conflict. The waits are random below the limit, so that processes with a
// conflict do not try again at the same time. Default: 1 ms to 250 ms. Values below 1 ns count as
// 1 ns.
func Backoff(first, largest time.Duration) Option {
	return func(s *settings) { s.first, s.largest = max(first, 1), max(largest, 1) }
}

// OnConflict calls f for each conflict, on the goroutine of the update, for a counter or a
// log.
func OnConflict(f func(context.Context, Conflict)) Option {
	return func(s *settings) { s.onConflict = append(s.onConflict, f) }
}

// callerError is an error of the caller's function, which is returned unchanged, even if it is
// an ErrConflict of another update.
type callerError struct{ error }

// repeat calls attempt until it returns something other than ErrConflict, or ctx ends.
func repeat(ctx context.Context, key string, o []Option, attempt func() error) error {
	s := settings{first: time.Millisecond, largest: 250 * time.Millisecond}
	for _, f := range o {
		f(&s)
	}
	limit := min(s.first, s.largest)
	for n := 1; ; n++ {
		err := attempt()
		if e, ok := err.(callerError); ok {
			return e.error
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		c := Conflict{Key: key, Attempt: n, Backoff: rand.N(limit)}
		for _, f := range s.onConflict {
			f(ctx, c)
		}
		if backoff.Sleep(ctx, c.Backoff) != nil {
			return fmt.Errorf("optimistic: %q after %d conflicts: %w: %w", key, n, ErrConflict, errors.Join(ctx.Err(), context.Cause(ctx)))
		}
		limit = min(2*limit, s.largest)
	}
}

// wrap adds to an error of a store the error of this package, or of package holdfast, that matches
// its code.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []error{ErrConflict, ErrUnknown, holdfast.ErrInvalid} {
		if errors.Is(err, known) {
			return err
		}
	}
	kind := ErrUnknown // mutation: values-unknown
	switch driver.CodeOf(err) {
	case driver.CodeConflict:
		kind = ErrConflict
	case driver.CodeInvalid:
		kind = holdfast.ErrInvalid
	case driver.CodeUnavailable, driver.CodeBusy, driver.CodeWithdrawn:
		kind = holdfast.ErrUnavailable
	case driver.CodeRefused, driver.CodeNotHeld:
		kind = holdfast.ErrRefused
	case driver.CodeUnsupported:
		kind = holdfast.ErrUnsupported
	case driver.CodeClosed:
		kind = holdfast.ErrClosed
	}
	return fmt.Errorf("%w: %w", kind, err)
}
