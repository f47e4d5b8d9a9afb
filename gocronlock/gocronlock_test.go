package gocronlock_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/gocronlock"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

func open(t *testing.T, s driver.Store) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(s)
	must.Succeed(t, err)
	return l
}

// TestLockerRunsAJobOnOneReplica: several schedulers start at different times, and one of them
// runs the job each hour.
func TestLockerRunsAJobOnOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var runs atomic.Int32
		var shutdown []func()
		for range 4 {
			l := open(t, s.Client())
			scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.New(l, 30*time.Minute)))
			must.Succeed(t, err)
			_, err = scheduler.NewJob(gocron.CronJob("0 * * * *", false), gocron.NewTask(func() { runs.Add(1) }), gocron.WithName("report"))
			must.Succeed(t, err)
			scheduler.Start()
			shutdown = append(shutdown, func() { _, _ = scheduler.Shutdown(), l.Close(context.Background()) })
			time.Sleep(5 * time.Minute)
		}
		time.Sleep(10 * time.Hour)
		for _, end := range shutdown {
			end()
		}
		if n := runs.Load(); n != 10 {
			t.Errorf("%d runs in 10 hours", n)
		}
	})
}

// TestJobsWithOneNameAreRefused: the jobs that a loop makes have one name without gocron.WithName. Check and Lock
// refuse the second one, also after the scheduler was stopped and started.
func TestJobsWithOneNameAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New())
		defer l.Close(context.Background())
		locks := gocronlock.New(l, time.Minute)
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locks))
		must.Succeed(t, err)
		var runs, refused atomic.Int32
		for range 2 {
			_, err := scheduler.NewJob(gocron.CronJob("0 * * * *", false), gocron.NewTask(func() { runs.Add(1) }),
				gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
					if errors.Is(err, holdfast.ErrInvalid) && strings.Contains(err.Error(), "gocron.WithName") {
						refused.Add(1)
					}
				})))
			must.Succeed(t, err)
		}
		if err := locks.Check(scheduler); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "two jobs have the name") {
			t.Errorf("Check: %v", err)
		}
		for range 2 {
			scheduler.Start()
			time.Sleep(70 * time.Minute)
			must.Succeed(t, scheduler.StopJobs())
		}
		must.Report(t, scheduler.Shutdown())
		if runs, refused := runs.Load(), refused.Load(); runs != 2 || refused != 2 {
			t.Errorf("in 2 hours %d runs, and %d errors for the second job", runs, refused)
		}
	})
}

// TestIntervalJobsNeedALongHold: replicas that started at different times run an interval job more often than its
// interval if the hold is shorter. Check names such a job, and none whose runs come at the same times everywhere. Lock
// refuses its first run, unless its times may be the same everywhere.
func TestIntervalJobsNeedALongHold(t *testing.T) {
	synctest.Test(t, testIntervalJobs)
}

func testIntervalJobs(t *testing.T) {
	l := open(t, memstore.New())
	defer l.Close(context.Background())
	at := gocron.NewAtTimes(gocron.NewAtTime(2, 30, 0))
	for name, c := range map[string]struct {
		job            gocron.JobDefinition
		hold           time.Duration
		wrong, refused bool // by Check, by Lock
	}{
		"short":            {gocron.DurationJob(10 * time.Minute), time.Minute, true, true},
		"long":             {gocron.DurationJob(10 * time.Minute), 10 * time.Minute, false, false},
		"at whole seconds": {gocron.DurationJob(10 * time.Minute), time.Minute, true, false},
		"random":           {gocron.DurationRandomJob(10*time.Minute, time.Hour), time.Minute, true, true},
		"cron":             {gocron.CronJob("*/10 * * * *", false), time.Minute, false, false},
		"daily":            {gocron.DailyJob(1, at), time.Minute, false, false},
		"every second day": {gocron.DailyJob(2, at), 24 * time.Hour, true, false},
	} {
		time.Sleep(1500 * time.Microsecond) // off the whole second
		locks := gocronlock.New(l, c.hold)
		scheduler, err := gocron.NewScheduler(gocronlock.WithLocker(locks), gocron.WithLocation(time.UTC))
		must.Succeed(t, err)
		first := make(chan error, 100)
		refused := gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { first <- err })
		options := []gocron.JobOption{gocron.WithName(name), gocron.WithEventListeners(refused)}
		if name == "at whole seconds" {
			options = append(options, gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Add(time.Second).Truncate(time.Second))))
		}
		_, err = scheduler.NewJob(c.job, gocron.NewTask(func() { first <- nil }), options...)
		if err != nil {
			t.Fatal(err)
		}
		named := func(err error) bool {
			return errors.Is(err, holdfast.ErrInvalid) && strings.Contains(err.Error(), strconv.Quote(name))
		}
		if err := locks.Check(scheduler); named(err) != c.wrong || (err == nil) == c.wrong {
			t.Errorf("%s: Check: %v", name, err)
		}
		scheduler.Start()
		if err := <-first; named(err) != c.refused || (err == nil) == c.refused {
			t.Errorf("%s: the first run: %v", name, err)
		}
		must.Report(t, scheduler.Shutdown())
	}
}

// prolonging is a store that keeps released locks for much longer than asked, as etcd does after changes of leader.
type prolonging struct{ *memstore.Store }

func (p prolonging) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return p.Store.Release(ctx, g, 20*keep)
}

// TestLockerLocksBehindAProlongedLock: the lock of a run that has ended hides no later run.
func TestLockerLocksBehindAProlongedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, prolonging{memstore.New()})
		defer l.Close(context.Background())
		locks := gocronlock.New(l, 10*time.Minute)
		for hour := range 3 {
			k, err := locks.Lock(t.Context(), "report")
			if err != nil {
				t.Fatalf("hour %d: %v", hour, err)
			}
			must.Report(t, k.Unlock(t.Context()))
			if _, err := locks.Lock(t.Context(), "report"); !errors.Is(err, holdfast.ErrBusy) {
				t.Errorf("the same run again: %v", err)
			}
			time.Sleep(time.Hour)
		}
	})
}

// TestElectorHasOneLeader: one replica leads, and the other one leads as soon as the first has
// stepped down.
func TestElectorHasOneLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		first, second := open(t, s.Client()), open(t, s.Client())
		defer first.Close(context.Background())
		defer second.Close(context.Background())
		a, err := gocronlock.NewElector(t.Context(), first, "leader")
		must.Succeed(t, err)
		synctest.Wait()
		b, err := gocronlock.NewElector(t.Context(), second, "leader")
		must.Succeed(t, err)
		synctest.Wait()
		if a, b := a.IsLeader(t.Context()), b.IsLeader(t.Context()); a != nil || !errors.Is(b, gocronlock.ErrNotLeader) {
			t.Errorf("%v, %v", a, b)
		}
		must.Report(t, a.Close())
		synctest.Wait()
		if a, b := a.IsLeader(t.Context()), b.IsLeader(t.Context()); b != nil || !errors.Is(a, gocronlock.ErrNotLeader) {
			t.Errorf("%v, %v", a, b)
		}
		must.Report(t, b.Close())
	})
}

// TestElectorReportsImpossibleElection: the constructor refuses arguments with which no replica can ever lead. An elector
// whose election has ended gives the reason.
func TestElectorReportsImpossibleElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New())
		for name, o := range map[string]holdfast.LockOption{"": holdfast.MaxHold(time.Minute), "shared": holdfast.Shared(), "ttl": holdfast.TTL(time.Microsecond)} {
			if e, err := gocronlock.NewElector(t.Context(), l, name, o); e != nil || !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%q: %v, %v", name, e, err)
			}
		}
		e, err := gocronlock.NewElector(t.Context(), l, "leader")
		must.Succeed(t, err)
		synctest.Wait()
		must.Succeed(t, l.Close(context.Background()))
		synctest.Wait()
		if err := e.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) || !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("IsLeader after Close of the Locker: %v", err)
		}
		if err := e.Close(); !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	})
}
