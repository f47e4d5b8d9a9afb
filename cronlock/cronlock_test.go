package cronlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/robfig/cron/v3"
)

// logger is a cron.Logger that records the errors.
type logger struct {
	mu   sync.Mutex
	errs []error
}

func (*logger) Info(string, ...any) {}
func (l *logger) Error(err error, _ string, _ ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// TestOnceRunsAJobOnOneReplica: the clocks of the replicas differ by less than the minimum hold, and
// exactly one replica runs each job.
func TestOnceRunsAJobOnOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := memstore.New(), &logger{}
		var mu sync.Mutex
		runs := 0
		var running sync.WaitGroup
		for i := range 5 {
			locker, err := holdfast.New(s.Client())
			if err != nil {
				t.Fatal(err)
			}
			defer locker.Close(context.Background())
			job := cron.NewChain(cronlock.Once(locker, log, "report", 30*time.Minute)).Then(cron.FuncJob(func() {
				mu.Lock()
				defer mu.Unlock()
				runs++
			}))
			running.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Minute) // the clock of this replica is behind
				for range 24 {
					job.Run() // as cron does
					time.Sleep(time.Hour)
				}
			})
		}
		running.Wait()
		if runs != 24 || len(log.errs) != 0 {
			t.Errorf("%d runs, errors %v", runs, log.errs)
		}
	})
}

func TestOnceLogsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := memstore.New(), &logger{}
		locker, err := holdfast.New(s)
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		s.Script().Stop()
		cronlock.Once(locker, log, "report", time.Minute)(cron.FuncJob(func() { t.Error("the job runs without the lock") })).Run()
		s.Script().Start()
		if len(log.errs) != 1 || !errors.Is(log.errs[0], holdfast.ErrUnavailable) {
			t.Error(log.errs)
		}
	})
}

// TestEveryTakesCronSchedule: Every accepts a schedule of cron's parser, and refuses a relative
// schedule.
func TestEveryTakesCronSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker, err := holdfast.New(memstore.New())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		schedule, err := cron.ParseStandard("15 3 * * *")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for tick, err := range locker.Every(t.Context(), "report", schedule) {
			if err != nil {
				t.Fatal(err)
			}
			if at := tick.Time.UTC(); at.Hour() != 3 || at.Minute() != 15 {
				t.Error(at)
			}
			if n++; n == 30 {
				break
			}
		}
		relative, err := cron.ParseStandard("@every 90m")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for _, err := range locker.Every(t.Context(), "relative", relative) {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Error(err)
			}
			break
		}
	})
}
