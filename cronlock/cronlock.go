// Package cronlock runs the jobs of github.com/robfig/cron on one of many replicas.
//
//	c := cron.New()
//	jobs := cronlock.New(locker, 5*time.Minute)
//	c.AddJob("@hourly", cron.NewChain(jobs.Once("report", cron.DefaultLogger)).Then(job))
//
// A replica runs the job under a lock, and keeps the lock for hold after the job has
// begun. Choose a hold that is longer than the difference between the replicas' clocks, and
// shorter than the time between two runs. The replicas that find the lock held skip the run.
//
// cron does not pass the scheduled time to a wrapper, so this is weaker than
// [holdfast.Locker.Every]. Every serves each time at most once, and reports the times that no
// replica has served. It takes the schedules of cron's parser as they are:
//
//	schedule, err := cron.ParseStandard("0 3 * * *")
//	...
//	for tick, err := range locker.Every(ctx, "report", schedule) {
package cronlock

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/onereplica"
	"github.com/robfig/cron/v3"
)

// Locker makes wrappers of jobs.
type Locker struct {
	locker  *holdfast.Locker
	hold    time.Duration
	options []holdfast.LockOption
}

// New returns a Locker whose locks stay for hold after a job has begun; hold is from 0 to 24 h. The
// options are those of the locks. MinHold and Reason have no effect.
func New(locker *holdfast.Locker, hold time.Duration, o ...holdfast.LockOption) *Locker {
	return &Locker{locker, hold, o}
}

// Once returns a wrapper that runs a job if no other replica runs it or has begun it
// within hold. All replicas pass the same name. The job does not run if the replica cannot
// acquire the lock. Once logs errors of the store, a lost lock, and a run that is skipped
// because an earlier one still has the lock.
func (l *Locker) Once(name string, log cron.Logger) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			k, err := onereplica.Try(context.Background(), l.locker, name, l.hold, l.options)
			switch {
			case errors.Is(err, holdfast.ErrBusy) && !errors.Is(err, onereplica.ErrEarlierRun):
				log.Info("holdfast: another replica runs it", "job", name)
				return
			case err != nil:
				log.Error(err, "holdfast", "job", name, "ran", false)
				return
			}
			defer func() { // also after a panic
				if err := k.Unlock(); errors.Is(err, holdfast.ErrLost) {
					log.Error(err, "holdfast", "job", name, "ran", true)
				}
			}()
			job.Run()
		})
	}
}
