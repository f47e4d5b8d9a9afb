// Package cronlock runs the jobs of github.com/robfig/cron on one of many replicas.
//
//	c := cron.New()
//	once := cronlock.Once(locker, cron.DefaultLogger, "report", 5*time.Minute)
//	c.AddJob("@hourly", cron.NewChain(once).Then(job))
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
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/robfig/cron/v3"
)

// Once returns a wrapper that runs a job if no other replica runs it or has begun it
// within hold. All replicas pass the same name. hold is from 0 to 24 h. Once logs errors of
// the store and a lost lock. The job does not run if the replica cannot acquire the lock.
// The options are those of the lock.
func Once(locker *holdfast.Locker, log cron.Logger, name string, hold time.Duration, o ...holdfast.LockOption) cron.JobWrapper {
	o = append(o[:len(o):len(o)], holdfast.MinHold(hold))
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			ran, err := locker.TryDo(context.Background(), name, func(context.Context) error {
				job.Run()
				return nil
			}, o...)
			switch {
			case err != nil:
				log.Error(err, "holdfast", "job", name, "ran", ran)
			case !ran:
				log.Info("holdfast: another replica runs it", "job", name)
			}
		})
	}
}
