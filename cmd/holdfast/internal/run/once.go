package run

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/optimistic"
)

// errDone ends a run whose key is marked as done.
var errDone = errors.New("it is done")

// marks reads and writes the mark of --once. It has a store client of its own, from the first read
// of the mark until the run has ended.
type marks struct {
	store   driver.Store
	values  optimistic.Values
	version string
}

func openMarks(ctx context.Context, rawURL, namespace string) (*marks, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: the store's URL", holdfast.ErrInvalid)
	}
	open, ok := driver.OpenerOf(u.Scheme)
	if !ok {
		return nil, fmt.Errorf("%w: scheme %q", holdfast.ErrInvalid, u.Scheme)
	}
	s, err := open(ctx, u, namespace)
	if err != nil {
		return nil, err
	}
	v, err := optimistic.Of(s)
	if err != nil {
		_ = s.Close(ctx)
		return nil, fmt.Errorf("--once: %w", err)
	}
	return &marks{store: s, values: v}, nil
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
	if r.Verbose || r.printer.Terminal() {
		said := strconv.Quote(r.Once) + " is done"
		if !mark.Done.IsZero() {
			said += " since " + mark.Done.Local().Format(time.DateTime)
		}
		if mark.Host != "" {
			said += fmt.Sprintf(", by pid %d on %s", mark.PID, mark.Host)
		}
		r.printer.Line("%s: the command is not run", said)
	}
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
		_ = r.marks.store.Close(ctx) // all requests of this client are finished, so an error does not matter
	}
}
