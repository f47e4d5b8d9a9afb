// Package onereplica acquires the locks of jobs that a scheduler starts on each replica at the same
// time. Modules cronlock and gocronlock use it.
package onereplica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// ErrEarlierRun is wrapped together with holdfast.ErrBusy: the lock is of an earlier run, so perhaps no
// replica does this one.
var ErrEarlierRun = errors.New("the lock is of an earlier run")

// Try acquires the lock of a run that begins now, without waiting. The lock stays for hold, and records when the run
// began, by the clock of the replica: the clocks of replicas differ by less than hold. A lock that the store has kept
// for longer than hold is of an earlier run, and Try breaks it. If an earlier run has not ended, the error wraps
// ErrEarlierRun.
func Try(ctx context.Context, l *holdfast.Locker, name string, hold time.Duration, o []holdfast.LockOption) (*holdfast.Lock, error) {
	now := ticks.Now(ctx)
	o = append(o[:len(o):len(o)], holdfast.MinHold(hold), holdfast.Reason(ticks.Reason(now)))
	for again := true; ; again = false {
		k, err := l.TryLock(ctx, name, o...)
		if !errors.Is(err, holdfast.ErrBusy) {
			return k, err
		}
		st, failed := l.Inspect(ctx, name)
		if failed != nil || len(st.Holders) == 0 {
			return nil, err
		}
		is := st.Holders[0]
		at, ok := ticks.At(is.Reason)
		if !ok || now.Sub(at) <= hold {
			return nil, err
		}
		if !again || !is.Kept {
			return nil, fmt.Errorf("%w: %w, which began at %s", err, ErrEarlierRun, at.Format(time.RFC3339))
		}
		if failed := l.Break(ctx, name, is.Token); failed != nil && !errors.Is(failed, holdfast.ErrNotHeld) {
			return nil, fmt.Errorf("%w: %w, and cannot be broken: %w", err, ErrEarlierRun, failed)
		}
	}
}
