// Package gocronlock runs the jobs of github.com/go-co-op/gocron/v2 on one of many replicas.
// With a [Locker], any replica can get each run. With an [Elector], the leader gets all runs.
//
//	locks := gocronlock.New(locker, time.Minute)
//	s, err := gocron.NewScheduler(gocronlock.WithLocker(locks))
//	...               // s.NewJob for each job, with gocron.WithName
//	err = locks.Check(s)
//
// A Locker needs two things:
//
//   - Each job has a name of its own, by gocron.WithName. Without it, gocron names a job after its function. So the
//     jobs that a loop makes share one lock, and only one of them runs. [Locker.Lock] refuses the second job of a name.
//   - The runs of a job come at the same times on all replicas, as with gocron.CronJob. The runs of an interval job,
//     such as gocron.DurationJob, follow the start of the replica. With a hold shorter than the interval it runs more
//     often than its interval. With a longer hold it runs at most once in each hold, and perhaps one interval later.
//     Or give it the same gocron.WithStartAt on all replicas, without fractions of a second.
//
// [Locker.Check] reports jobs that miss this before they run. It does not see WithStartAt. gocron shows a Locker the name
// of a job, and not its schedule: with [WithLocker], Lock knows the schedule, and refuses an interval job with a short hold
// whose times have fractions of a second, as they have after a start without WithStartAt.
//
// [holdfast.Locker.Every] is stronger than both: it serves each time of a schedule at
// most once, and reports the times that no replica has served.
package gocronlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/onereplica"
)

// Locker is a gocron.Locker of one scheduler. Its locks have the names of the jobs.
type Locker struct {
	locker  *holdfast.Locker
	hold    time.Duration
	options []holdfast.LockOption

	mu        sync.Mutex
	scheduler gocron.Scheduler           // of WithLocker
	jobs      map[string]context.Context // the context of the job of each name, which gocron cancels with the job
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker whose locks stay for hold after a job has begun. Choose hold
// longer than the clocks of the replicas may differ, and shorter than the distance of two
// runs of a job. It is from 0 to 24 h. The options are those of the locks. MinHold and Reason have no effect.
func New(locker *holdfast.Locker, hold time.Duration, o ...holdfast.LockOption) *Locker {
	return &Locker{locker: locker, hold: hold, options: o, jobs: map[string]context.Context{}}
}

// WithLocker is gocron.WithDistributedLocker(l), and shows l the jobs of the scheduler. So Lock refuses interval jobs with
// an interval longer than the hold of l, and with times that are not whole seconds.
func WithLocker(l *Locker) gocron.SchedulerOption {
	return before(gocron.WithDistributedLocker(l), func(s gocron.Scheduler) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.scheduler = s
	})
}

// before returns an option that calls do first. The type of a scheduler has no name outside of gocron.
func before[S gocron.Scheduler](option func(S) error, do func(gocron.Scheduler)) func(S) error {
	return func(s S) error {
		do(s)
		return option(s)
	}
}

// Check returns an error that names the jobs of a scheduler that run too often or not at all: those with the name of
// another job, and interval jobs with an interval longer than hold. Call it when the scheduler has all its jobs. It
// assumes that all of them use this Locker. The error matches holdfast.ErrInvalid.
func (l *Locker) Check(s gocron.Scheduler) error {
	var wrong []string
	seen := map[string]bool{}
	for _, j := range s.Jobs() {
		name := j.Name()
		if seen[name] {
			wrong = append(wrong, sharedName(name))
		}
		seen[name] = true
		if short := l.tooShort(j); short != "" {
			wrong = append(wrong, short)
		}
	}
	return refusal(wrong...)
}

func refusal(why ...string) error {
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("%w: gocronlock: %s", holdfast.ErrInvalid, strings.Join(why, "; "))
}

// tooShort returns what is wrong with the hold of a job, or "".
func (l *Locker) tooShort(j gocron.Job) string {
	interval := intervalOf(j.Schedule())
	if interval <= l.hold {
		return ""
	}
	return fmt.Sprintf("job %q has an interval of %s and a hold of only %s, so replicas that started at different times "+
		"run it more often: use gocron.CronJob, the same gocron.WithStartAt everywhere, or a longer hold", j.Name(), interval, l.hold)
}

func sharedName(name string) string {
	return fmt.Sprintf("two jobs have the name %q, and so one lock: give each its own by gocron.WithName", name)
}

// intervalOf returns the interval of a job whose runs follow the start of the scheduler, and 0 for another job.
func intervalOf(s gocron.JobSchedule) time.Duration {
	const day = 24 * time.Hour
	n, unit := uint(0), day
	switch s := s.(type) {
	case gocron.DurationJobSchedule:
		return s.Duration
	case gocron.DurationRandomJobSchedule:
		return s.Min
	case gocron.DailyJobSchedule:
		n = s.Interval
	case gocron.WeeklyJobSchedule:
		n, unit = s.Interval, 7*day
	case gocron.MonthlyJobSchedule:
		n, unit = s.Interval, 28*day
	}
	if n < 2 { // every day has the same times everywhere, every second day has not
		return 0
	}
	return time.Duration(n) * unit
}

// Lock acquires the lock of a job if it is free. Otherwise gocron leaves the run out on
// this replica, and its error matches holdfast.ErrBusy. Gocron reports it to a monitor and to event listeners. If the
// lock is that of an earlier run, the error contains its time. For the second of two jobs with one name, and for an
// interval job that WithLocker shows to be wrong, the error matches holdfast.ErrInvalid.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	l.mu.Lock()
	job, scheduler := l.jobs[key], l.scheduler
	if job == nil || job.Err() != nil {
		job = ctx
		l.jobs[key] = ctx
	}
	l.mu.Unlock()
	if job != ctx {
		return nil, refusal(sharedName(key))
	}
	if short := l.short(ctx, scheduler, key); short != "" {
		return nil, refusal(short)
	}
	k, err := onereplica.Try(ctx, l.locker, key, l.hold, l.options)
	if err != nil {
		return nil, err
	}
	return lock{k}, nil
}

// short returns what is wrong with the hold of the jobs with a name, or "". The times of a job with a start time may be the
// same everywhere, so it accepts whole seconds. The scheduler does not return its jobs while it waits for their end. But
// then ctx has ended.
func (l *Locker) short(ctx context.Context, s gocron.Scheduler, name string) string {
	if s == nil {
		return ""
	}
	found := make(chan string, 1)
	go func() {
		short := ""
		for _, j := range s.Jobs() {
			if j.Name() != name {
				continue
			}
			if next, err := j.NextRun(); err == nil && next.Nanosecond() != 0 {
				short = cmp.Or(short, l.tooShort(j))
			}
		}
		found <- short
	}()
	select {
	case short := <-found:
		return short
	case <-ctx.Done():
		return ""
	}
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
