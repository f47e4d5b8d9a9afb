//go:build linux || darwin

package run

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/optimistic"
)

// errDone ends a run whose key is marked as done.
var errDone = errors.New("it is done")

// marks reads and writes the mark of --once. It has a Locker of its own, from the first read
// of the mark until the run has ended.
type marks struct {
	locker  *holdfast.Locker
	values  optimistic.Values
	version string
}

func openMarks(ctx context.Context, rawURL, namespace string) (*marks, error) {
	l, err := holdfast.Open(ctx, rawURL, holdfast.Namespace(namespace))
	if err != nil {
		return nil, err
	}
	v, err := l.Values()
	if err != nil {
		_ = l.Close(ctx)
		return nil, fmt.Errorf("--once: %w", err)
	}
	return &marks{locker: l, values: v}, nil
}

// checkMark returns errDone if the key of --once is marked. Without --once it does nothing.
func (r *runner) checkMark(ctx context.Context) (err error) {
	if r.Once == "" {
		return nil
	}
	if r.marks == nil {
		if r.marks, err = openMarks(ctx, r.Store, r.Namespace); err != nil {
			return err
		}
	}
	mark, version, err := optimistic.ReadMark(ctx, r.marks.values, r.Once)
	if err != nil || mark == nil {
		r.marks.version = version
		return err
	}
	done := strconv.Quote(r.Once) + " is done"
	if !mark.Done.IsZero() {
		done += " since " + mark.Done.Local().Format(time.DateTime)
	}
	if mark.Host != "" {
		done += fmt.Sprintf(", by pid %d on %s", mark.PID, mark.Host)
	}
	r.printer.Line("%s: the command is not run", done)
	return errDone
}

// mark marks the key of --once after its command has succeeded, while the lock is held.
func (r *runner) mark(lock *holdfast.Lock, status int) (int, error) {
	if r.Once == "" || status != exit.OK {
		return status, nil
	}
	err := optimistic.SetMark(lock.Context(), r.marks.values, r.Once, r.marks.version, lock.Token())
	if err == nil {
		return status, nil
	}
	if lock.Context().Err() != nil {
		return exit.Lost, err
	}
	return exit.Of(err, exit.Unavailable), err
}

func (r *runner) closeMarks() {
	if r.marks != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = r.marks.locker.Close(ctx) // all requests of this client are finished, so an error does not matter
	}
}
