package optimistic

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Once runs f unless key is marked as done, and marks it when f has returned nil. Ran
// reports whether f ran. If f fails, its error is returned and nothing is marked, so that
// the next caller tries again.
//
// Once holds the lock named key while it looks for the mark, runs f and writes the mark. So of
// several callers one runs f, and the others wait and then find the mark. Lock options are
// those of holdfast.Locker.Do; do not give Shared or Limit, which would let several callers
// run f. A lock is advisory: f can run a second time if its holder is paused for longer than
// the TTL. Let f pass its token to a guard (package fence) where that would do harm.
//
//	ran, err := optimistic.Once(ctx, locker, store, "invoices/2026-11", sendInvoices)
//
// The mark is the value of key in values. It stays until an operator writes an empty value
// there: use keys that name the occasion. Values must be as durable as the job's effect.
//
// Errors are those of Locker.Do and [Put]. An error that wraps [ErrUnknown] or
// holdfast.ErrLost means that f may have run without leaving its mark.
func Once(ctx context.Context, l *holdfast.Locker, values Values, key string, f func(context.Context) error, o ...holdfast.LockOption) (ran bool, err error) {
	if mark, _, err := ReadMark(ctx, values, key); err != nil || mark != nil {
		return false, err
	}
	err = l.Do(ctx, key, func(ctx context.Context) error {
		mark, version, err := ReadMark(ctx, values, key)
		if err != nil || mark != nil { // mutation: once-mark
			return err
		}
		ran = true
		if err := f(ctx); err != nil {
			return err
		}
		return SetMark(ctx, values, key, version, holdfast.Token(ctx, key))
	}, o...)
	return ran, err
}

// Mark is the value of a key that is marked as done, for people to read.
type Mark struct {
	// Done is when the job was done, by the clock of Host.
	Done time.Time `json:"done"`
	Host string    `json:"host,omitempty"`
	PID  int       `json:"pid,omitempty"`
	// Token is the fencing token of the lock under which it was done.
	Token uint64 `json:"token,omitempty"`
}

// ReadMark returns the mark of a key, nil if it is not marked, and the version for
// [SetMark]. A value that is not empty and not a Mark is a mark without content.
func ReadMark(ctx context.Context, values Values, key string) (*Mark, string, error) {
	data, version, err := Get(ctx, values, key)
	if err != nil || len(data) == 0 {
		return nil, version, err
	}
	var m Mark
	_ = json.Unmarshal(data, &m) // any content is a mark, whichever process has written it
	return &m, version, nil
}

// SetMark marks a key as done, at the version that [ReadMark] returned. If ctx has ended,
// for example because the lock is lost, it writes nothing. An error that wraps
// [ErrConflict] means that another process has marked it.
func SetMark(ctx context.Context, values Values, key, version string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %q is done but not marked: %w: %w", holdfast.ErrUnavailable, key, err, context.Cause(ctx))
	}
	host, _ := os.Hostname() // for people only
	data, err := json.Marshal(Mark{Done: time.Now().UTC().Truncate(time.Second), Host: host, PID: os.Getpid(), Token: token})
	if err != nil {
		return err
	}
	if _, err := Put(ctx, values, key, data, version); err != nil {
		return fmt.Errorf("%q is done but not marked: %w", key, err)
	}
	return nil
}
