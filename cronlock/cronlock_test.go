package cronlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
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
			must.Succeed(t, err)
			defer locker.Close(context.Background())
			job := cron.NewChain(cronlock.New(locker, 30*time.Minute).Once("report", log)).Then(cron.FuncJob(func() {
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

// prolonging is a store that keeps released locks for much longer than asked, as etcd does after changes of leader.
type prolonging struct{ *memstore.Store }

func (p prolonging) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return p.Store.Release(ctx, g, 20*keep)
}

// TestOnceRunsBehindAProlongedLock: the lock of a run that has ended hides no later run.
func TestOnceRunsBehindAProlongedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := memstore.New(), &logger{}
		runs := 0
		var jobs []cron.Job
		for range 2 {
			locker, err := holdfast.New(prolonging{s.Client()})
			must.Succeed(t, err)
			defer locker.Close(context.Background())
			jobs = append(jobs, cronlock.New(locker, 10*time.Minute).Once("report", log)(cron.FuncJob(func() { runs++ })))
		}
		for hour := 1; hour <= 5; hour++ {
			for _, job := range jobs {
				job.Run()
				time.Sleep(5 * time.Minute) // the clock of the other replica is behind
			}
			if runs != hour {
				t.Errorf("hour %d: %d runs", hour, runs)
			}
			time.Sleep(50 * time.Minute)
		}
		if len(log.errs) > 0 {
			t.Error(log.errs)
		}
	})
}

// TestOnceReportsRunsBehindALongJob: a job that lasts into the next run keeps its lock, and each replica reports the
// run that nobody does.
func TestOnceReportsRunsBehindALongJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := memstore.New(), &logger{}
		locker, err := holdfast.New(s.Client())
		must.Succeed(t, err)
		other, err := holdfast.New(s.Client())
		must.Succeed(t, err)
		defer other.Close(context.Background())
		defer locker.Close(context.Background())
		runs := 0
		job := func(l *holdfast.Locker) cron.Job {
			return cronlock.New(l, 10*time.Minute).Once("report", log)(cron.FuncJob(func() { runs++; time.Sleep(90 * time.Minute) }))
		}
		var running sync.WaitGroup
		running.Go(job(locker).Run)
		time.Sleep(5 * time.Minute)
		job(other).Run()
		if len(log.errs) != 0 {
			t.Error(log.errs)
		}
		time.Sleep(55 * time.Minute)
		job(other).Run()
		if len(log.errs) != 1 || !errors.Is(log.errs[0], holdfast.ErrBusy) || !strings.Contains(log.errs[0].Error(), "2000-01-01T00:00:00Z") {
			t.Error(log.errs)
		}
		running.Wait()
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
	})
}

func TestOnceLogsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := memstore.New(), &logger{}
		locker, err := holdfast.New(s)
		must.Succeed(t, err)
		defer locker.Close(context.Background())
		s.Script().Stop()
		cronlock.New(locker, time.Minute).Once("report", log)(cron.FuncJob(func() { t.Error("the job runs without the lock") })).Run()
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
		must.Succeed(t, err)
		defer locker.Close(context.Background())
		schedule, err := cron.ParseStandard("15 3 * * *")
		must.Succeed(t, err)
		n := 0
		for tick, err := range locker.Every(t.Context(), "report", schedule) {
			must.Succeed(t, err)
			if at := tick.Time.UTC(); at.Hour() != 3 || at.Minute() != 15 {
				t.Error(at)
			}
			if n++; n == 30 {
				break
			}
		}
		relative, err := cron.ParseStandard("@every 90m")
		must.Succeed(t, err)
		time.Sleep(time.Second)
		for _, err := range locker.Every(t.Context(), "relative", relative) {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Error(err)
			}
			break
		}
	})
}

// TestEveryEvaluatesCronSchedulesInLocalTime: as cron does, also over a change to summer
// time and back.
func TestEveryEvaluatesCronSchedulesInLocalTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	must.Succeed(t, err)
	local := time.Local
	time.Local = berlin
	defer func() { time.Local = local }()
	spring, autumn := time.Date(2000, 3, 25, 0, 0, 0, 0, time.UTC), time.Date(2000, 10, 28, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		start      time.Time // the day before the zone of Berlin changes
		expression string
		want       []string // the times of ticks in UTC
	}{
		{spring, "15 3 * * *", []string{"02:15", "01:15", "01:15"}},
		{autumn, "15 3 * * *", []string{"01:15", "02:15", "02:15"}},
		{spring, "CRON_TZ=Asia/Tokyo 15 3 * * *", []string{"18:15", "18:15"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			locker, err := holdfast.New(memstore.New())
			must.Succeed(t, err)
			defer locker.Close(context.Background())
			schedule, err := cron.ParseStandard(test.expression)
			must.Succeed(t, err)
			time.Sleep(time.Until(test.start))
			var got []string
			for tick, err := range locker.Every(t.Context(), "report", schedule) {
				if err != nil || tick.Time.Location() != time.UTC {
					t.Errorf("%s: %v, %v", test.expression, tick.Time, err)
				}
				if got = append(got, tick.Time.Format("15:04")); len(got) == len(test.want) {
					break
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: at %v UTC, want %v", test.expression, got, test.want)
			}
		})
	}
}
