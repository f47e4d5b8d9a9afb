// Package gocronlock runs the jobs of github.com/go-co-op/gocron/v2 on one of many replicas.
// With a [Locker], any replica can get each run. With an [Elector], the leader gets all runs.
//
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.New(locker, time.Minute)))
//
// [holdfast.Locker.Every] is stronger than both: it serves each time of a schedule at
// most once, and reports the times that no replica has served.
package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/onereplica"
)

// Locker is a gocron.Locker. Its locks have the names of the jobs.
type Locker struct {
	locker  *holdfast.Locker
	hold    time.Duration
	options []holdfast.LockOption
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker whose locks stay for hold after a job has begun. Choose hold
// longer than the clocks of the replicas may differ, and shorter than the distance of two
// runs of a job. It is from 0 to 24 h. The options are those of the locks. MinHold and Reason have no effect.
func New(locker *holdfast.Locker, hold time.Duration, o ...holdfast.LockOption) *Locker {
	return &Locker{locker, hold, o}
}

// Lock acquires the lock of a job if it is free. Otherwise gocron leaves the run out on
// this replica, and its error matches holdfast.ErrBusy. Gocron reports it to a monitor and to event listeners. If the
// lock is that of an earlier run, the error contains its time.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	k, err := onereplica.Try(ctx, l.locker, key, l.hold, l.options)
	if err != nil {
		return nil, err
	}
	return lock{k}, nil
}

type lock struct{ k *holdfast.Lock }

func (l lock) Unlock(context.Context) error { return l.k.Unlock() }

// ErrNotLeader: another replica leads, or none.
var ErrNotLeader = errors.New("gocronlock: this replica does not lead")

// Elector is a gocron.Elector: the jobs run on the leader.
type Elector struct {
	mu   sync.Mutex
	term context.Context
	end  context.CancelFunc
	done chan struct{}
	err  error
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector takes part in the election of that name until ctx ends or Close is called;
// see [holdfast.Locker.Lead]. It returns an error for a name or an option with which Lead cannot succeed.
func NewElector(ctx context.Context, locker *holdfast.Locker, name string, o ...holdfast.LockOption) (*Elector, error) {
	ctx, cancel := context.WithCancel(ctx)
	ended, end := context.WithCancel(ctx)
	end()
	// With an ended context Lead only checks its arguments.
	if err := locker.Lead(ended, name, nil, o...); !errors.Is(err, context.Canceled) && ctx.Err() == nil {
		cancel()
		return nil, err
	}
	e := &Elector{end: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.err = locker.Lead(ctx, name, func(ctx context.Context) error {
			e.set(ctx)
			<-ctx.Done()
			return ctx.Err()
		}, o...)
	}()
	return e, nil
}

func (e *Elector) set(term context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = term
}

// IsLeader returns nil while this replica leads. It reads the clock, so that a replica
// that was paused for longer than its TTL does not lead. A job is not notified when the
// leadership ends while it runs. Protect its critical part with a lock. When the election has ended, the error
// wraps its reason.
func (e *Elector) IsLeader(context.Context) error {
	select {
	case <-e.done:
		return fmt.Errorf("%w, and the election has ended: %w", ErrNotLeader, e.err)
	default:
	}
	e.mu.Lock()
	term := e.term
	e.mu.Unlock()
	if term == nil || term.Err() != nil {
		return ErrNotLeader
	}
	return nil
}

// Close steps down, and returns when the leadership is released. Shut the scheduler down before
// Close, so that no job continues. The error is that of the election, nil if it continued until
// Close.
func (e *Elector) Close() error {
	e.end()
	<-e.done
	if errors.Is(e.err, context.Canceled) {
		return nil
	}
	return e.err
}
