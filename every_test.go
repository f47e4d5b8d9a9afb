package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/ticks"
	"github.com/holdfast-go/holdfast/memstore"
)

// outcomes counts the outcomes of a schedule's ticks.
type outcomes struct {
	sync.Mutex
	served, missed map[time.Time]int
	// slow: a replica may work for so long that it comes too late to check a tick of another one.
	slow bool
}

func newOutcomes() *outcomes {
	return &outcomes{served: map[time.Time]int{}, missed: map[time.Time]int{}}
}

// run runs Every as one replica. The work of each tick lasts for the duration that work
// returns.
func (c *outcomes) run(t *testing.T, ctx context.Context, l *holdfast.Locker, s holdfast.Schedule, work func() time.Duration) {
	for tick, err := range l.Every(ctx, "job", s) {
		c.Lock()
		switch {
		case err == nil:
			c.served[tick.Time]++
		case errors.Is(err, holdfast.ErrMissed):
			c.missed[tick.Time]++
		case c.slow && strings.Contains(err.Error(), "could not check in time"):
		default:
			t.Errorf("%s: %v", tick.Time, err)
		}
		c.Unlock()
		if err == nil {
			time.Sleep(work())
		}
	}
}

// TestEveryServesEachTickOnce runs many replicas on one schedule. Their clocks differ by less
// than the period and less than an hour, and some replicas are slow.
func TestEveryServesEachTickOnce(t *testing.T) {
	for period, n := range map[time.Duration]time.Duration{time.Second: 100, time.Minute: 100, 7 * time.Hour: 10, 24 * time.Hour: 5} {
		t.Run(period.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				c := newOutcomes()
				c.slow = true
				skew := min(period, time.Hour)
				began := time.Now()
				ctx, cancel := context.WithTimeout(bg, n*period+period/2)
				defer cancel()
				var wg sync.WaitGroup
				for range 10 {
					l := newLocker(t, s.Client())
					ctx := ticks.Ahead(ctx, rand.N(skew)-skew/2)
					wg.Go(func() {
						c.run(t, ctx, l, holdfast.Period(period), func() time.Duration { return rand.N(3 * skew) })
					})
				}
				wg.Wait()
				// Some replicas may have started after the first tick, or ended before the
				// last one.
				first := holdfast.Period(period).Next(began.Add(period).UTC())
				for at := first; at.Before(first.Add((n - 3) * period)); at = at.Add(period) {
					if c.served[at] != 1 || c.missed[at] != 0 {
						t.Errorf("%s: served %d times, missed %d times", at, c.served[at], c.missed[at])
					}
				}
				for at, n := range c.served {
					if n > 1 || c.missed[at] > 0 {
						t.Errorf("%s: served %d times, missed %d times", at, n, c.missed[at])
					}
				}
			})
		})
	}
}

// shift is due in each minute of two hours of a day.
type shift struct{}

func (shift) Next(t time.Time) time.Time {
	for at := t.UTC().Truncate(time.Minute).Add(time.Minute); ; at = at.Add(time.Minute) {
		if at.Hour() == 8 || at.Hour() == 12 {
			return at
		}
	}
}

// TestEveryKeepsAtMost15Locks counts the locks that the ticks of a job have at the store. In a session recipe each is a
// connection, and the documents state how many.
func TestEveryKeepsAtMost15Locks(t *testing.T) {
	for period, want := range map[time.Duration]int{time.Second: 15, time.Hour: 15, 24 * time.Hour: 2} {
		synctest.Test(t, func(t *testing.T) {
			l := newLocker(t, memstore.New())
			most, ticks := 0, 0
			for _, err := range l.Every(bg, "job", holdfast.Period(period)) {
				must.Succeed(t, err)
				kept := 0
				for range l.List(bg, "") {
					kept++
				}
				most = max(most, kept)
				if ticks++; ticks == 60 {
					break
				}
			}
			if most > want {
				t.Errorf("%s: %d locks, want at most %d", period, most, want)
			}
		})
	}
}

// TestEveryServesAScheduleWithPauses: the locks that a tick before a pause left behind end
// before its slot is used again.
func TestEveryServesAScheduleWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, began := memstore.New(), newOutcomes(), time.Now()
		ctx, cancel := context.WithTimeout(bg, 48*time.Hour)
		defer cancel()
		var wg sync.WaitGroup
		for range 3 {
			l := newLocker(t, s.Client())
			wg.Go(func() { c.run(t, ctx, l, shift{}, func() time.Duration { return rand.N(time.Second) }) })
		}
		wg.Wait()
		n := 0
		for at := (shift{}).Next(began); at.Before(time.Now()); at = (shift{}).Next(at) {
			if n++; c.served[at] != 1 || c.missed[at] != 0 {
				t.Errorf("%s: served %d times, missed %d times", at, c.served[at], c.missed[at])
			}
		}
		if n != 240 {
			t.Errorf("%d ticks", n)
		}
	})
}

// TestEveryRecordsAServedTickAgain: the store does not confirm the record of a served tick until the marker has
// ended. The replica records the tick before another replica reports it as missed.
func TestEveryRecordsAServedTickAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, period := memstore.New(), newOutcomes(), time.Minute
		ctx, cancel := context.WithTimeout(bg, 30*period)
		defer cancel()
		away := driver.Errorf(driver.CodeUnavailable, "the store cannot be reached")
		var wg sync.WaitGroup
		for range 3 {
			l := newLocker(t, s.Client())
			wg.Go(func() {
				c.run(t, ctx, l, holdfast.Period(period), func() time.Duration {
					for st := range l.List(ctx, "job:run") {
						if !st.Holders[0].Kept {
							s.Script().FailReleases(st.Name, 1000, away)
						}
					}
					time.AfterFunc(period-time.Second, s.Script().Reset)
					return rand.N(time.Second)
				})
			})
		}
		wg.Wait()
		if len(c.served) < 28 || len(c.missed) != 0 {
			t.Errorf("%d ticks were served, and reported as missed: %v", len(c.served), c.missed)
		}
	})
}

// TestEveryReportsTicksBehindLongWork: work lasts into the next use of its slot. The tick of that slot is reported,
// and the work keeps its lock.
func TestEveryReportsTicksBehindLongWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, period := memstore.New(), newOutcomes(), time.Minute
		first := holdfast.Period(period).Next(time.Now()).UTC()
		ctx, cancel := context.WithTimeout(bg, 30*period)
		defer cancel()
		var wg sync.WaitGroup
		long := newLocker(t, s.Client())
		wg.Go(func() {
			for tick, err := range long.Every(ctx, "job", holdfast.Period(period)) {
				must.Report(t, err)
				time.Sleep(28 * period)
				if err := tick.Context().Err(); err != nil {
					t.Errorf("the context of the long work: %v", context.Cause(tick.Context()))
				}
				return
			}
		})
		time.Sleep(period + period/2)
		l := newLocker(t, s.Client())
		wg.Go(func() { c.run(t, ctx, l, holdfast.Period(period), func() time.Duration { return 0 }) })
		wg.Wait()
		for n := range 20 {
			if at := first.Add(time.Duration(n+1) * period); c.served[at] != btoi(n != 15) || c.missed[at] != btoi(n == 15) {
				t.Errorf("tick %d: served %d times, missed %d times", n, c.served[at], c.missed[at])
			}
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestEveryReportsAnOutage: a replica reports the ticks in which it could not take part, and
// continues afterwards. The errors name the job, and not the locks of its ticks.
func TestEveryReportsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		ctx, cancel := context.WithTimeout(bg, 30*time.Minute)
		defer cancel()
		time.AfterFunc(10*time.Minute, s.Script().Stop)
		time.AfterFunc(20*time.Minute, s.Script().Start)
		served, reported := 0, map[time.Time]bool{}
		for tick, err := range l.Every(ctx, "job", holdfast.Period(time.Minute)) {
			switch {
			case err == nil:
				served++
			case errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrMissed):
				reported[tick.Time] = true
			default:
				t.Error(err)
			}
			if err != nil && !strings.Contains(err.Error(), `"job"`) {
				t.Errorf("%v: want the name of the job", err)
			}
		}
		if served < 18 || len(reported) < 8 || served+len(reported) < 28 || served+len(reported) > 31 {
			t.Errorf("%d ticks served, %d reported", served, len(reported))
		}
	})
}

// TestEveryReportsAPause: the work took much longer than the interval of the ticks. Every
// reports the ticks that are too old in a few errors, not one by one, and serves the next ones.
func TestEveryReportsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		ctx, cancel := context.WithTimeout(bg, 20*time.Hour)
		defer cancel()
		served, failed := 0, 0
		for _, err := range l.Every(ctx, "job", holdfast.Period(10*time.Minute)) {
			switch {
			case errors.Is(err, holdfast.ErrMissed):
			case err != nil:
				failed++
			default:
				if served++; served == 1 {
					time.Sleep(10 * time.Hour)
				}
			}
		}
		if failed == 0 || failed > 10 || served < 55 {
			t.Errorf("%d served, %d errors", served, failed)
		}
	})
}

// TestEveryReportsATickBehindItsOwnMarker: a replica tries to take the marker of an unfinished tick, gets no answer,
// and finds its own request in the way at the last check. No other replica will report the tick.
func TestEveryReportsATickBehindItsOwnMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		dead, died := newLocker(t, s.Client()), time.Time{} // died is the tick that dead has begun
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() {
			for tick := range dead.Every(bg, "job", holdfast.Period(time.Minute)) {
				died = tick.Time
				for st := range dead.List(bg, "job:run") {
					_ = s.Script().Lose(st.Name, holdfast.CauseGone)
				}
				<-tick.Context().Done()
				break
			}
		})
		granted, at := false, holdfast.Period(time.Minute).Next(time.Now())
		marker := ticks.Lock("job", ticks.Marker, ticks.Slot(at.Unix()/86400%2, 1))
		from, client := at.Add(4*time.Minute+15*time.Second), s.Client()
		// The store answers no request for the marker. From some time on it grants one of them, and never undoes it.
		watcher := newLocker(t, &fake{Store: client, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			switch {
			case r.Name != marker || granted:
				return client.Acquire(ctx, r)
			case time.Now().Before(from):
				return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "away")
			}
			granted = true
			time.Sleep(5 * time.Second)
			_, _ = client.Acquire(ctx, r)
			return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "no answer")
		}, OnUndo: func(context.Context, driver.Request) error {
			return driver.Errorf(driver.CodeUnavailable, "away")
		}})
		ctx, cancel := context.WithTimeout(ticks.Ahead(bg, -10*time.Second), 20*time.Minute)
		defer cancel()
		reported := false
		for tick, err := range watcher.Every(ctx, "job", holdfast.Period(time.Minute)) {
			reported = reported || err != nil && tick.Time.Equal(died)
		}
		if died.IsZero() || !granted || !reported {
			t.Errorf("the tick %s: its marker was granted without an answer: %t; reported: %t", died, granted, reported)
		}
	})
}

// fromStart is due at equal intervals since the start of the process.
type fromStart time.Duration

func (f fromStart) Next(t time.Time) time.Time { return t.Add(time.Duration(f)) }

// once is due at one time.
type once time.Time

func (o once) Next(t time.Time) time.Time {
	if t.Before(time.Time(o)) {
		return time.Time(o)
	}
	return time.Time{}
}

// TestEveryTriesTheLastTickAgain: a schedule ends during a short outage. Every still serves
// its last tick.
func TestEveryTriesTheLastTickAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := memstore.New(), newOutcomes()
		l := newLocker(t, s)
		must.Succeed(t, l.Ping(bg))
		at := time.Now().Add(time.Hour).UTC()
		s.Script().Stop()
		time.AfterFunc(time.Hour+20*time.Second, s.Script().Start)
		c.run(t, bg, l, once(at), func() time.Duration { return 0 })
		if c.served[at] != 1 || c.missed[at] != 0 {
			t.Errorf("served %d times, missed %d times", c.served[at], c.missed[at])
		}
	})
}

// TestEveryBeginsWhileTheStoreIsAway: the store's least TTL is longer than two intervals, and
// unknown at the first tick. Every serves that tick.
func TestEveryBeginsWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, asked := altered(memstore.New(), func(g *driver.Guarantees) { g.MinTTL = 2 * time.Second }), false
		s.Guaranteed = func(context.Context) error {
			if asked {
				return nil
			}
			asked = true
			return driver.Errorf(driver.CodeUnavailable, "away")
		}
		l := newLocker(t, s)
		must.Report(t, first(l.Every(bg, "job", holdfast.Period(500*time.Millisecond))))
	})
}

// TestEveryEndsWithItsContext: Every returns no error when its context ends, also between
// the two locks of a tick.
func TestEveryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		s := memstore.New()
		l := newLocker(t, &fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if strings.HasPrefix(r.Name, "job:run") {
				cancel()
			}
			return s.Acquire(ctx, r)
		}})
		for tick, err := range l.Every(ctx, "job", holdfast.Period(time.Minute)) {
			t.Error(tick.Time, err)
		}
	})
}

// TestCloseDoesNotWaitForEvery: the store cannot keep a lock without its client, so the Locker
// keeps the locks of a served tick for hours. Close does not wait for them.
func TestCloseDoesNotWaitForEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, err := holdfast.New(altered(s, func(g *driver.Guarantees) { g.Linger = false }))
		must.Succeed(t, err)
		for _, err := range l.Every(bg, "job", holdfast.Period(time.Hour)) {
			must.Report(t, err)
			break
		}
		n := func() (n int) {
			for range newLocker(t, s.Client()).List(bg, "job:") {
				n++
			}
			return n
		}
		time.Sleep(time.Hour)
		if n := n(); n != 2 {
			t.Errorf("%d locks of the tick are left, want its claim and its marker", n)
		}
		began := time.Now()
		must.Report(t, l.Close(bg))
		if took := time.Since(began); took > time.Minute {
			t.Errorf("Close took %s", took)
		}
		if n := n(); n != 0 {
			t.Errorf("%d locks are left after Close", n)
		}
	})
}

func TestEveryChecksItsInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		coarse := newLocker(t, altered(memstore.New(), func(g *driver.Guarantees) { g.Granularity = 3 * time.Second }))
		must.Report(t, first(coarse.Every(bg, "job", holdfast.Period(1500*time.Millisecond))))
		for what, call := range map[string]func() error{
			"leases that outlast the watch": func() error { return first(coarse.Every(bg, "job", holdfast.Period(1400*time.Millisecond))) },
			"shared":                        func() error { return first(l.Every(bg, "job", holdfast.Period(time.Minute), holdfast.Shared())) },
			"no name":                       func() error { return first(l.Every(bg, "", holdfast.Period(time.Minute))) },
			"nil":                           func() error { return first(l.Every(bg, "job", nil)) },
			"zero":                          func() error { return first(l.Every(bg, "job", holdfast.Period(0))) },
			"long TTL": func() error {
				return first(l.Every(bg, "job", holdfast.Period(time.Second), holdfast.TTL(time.Minute)))
			},
			"long TTL of a rare tick": func() error {
				return first(l.Every(bg, "job", holdfast.Period(24*time.Hour), holdfast.TTL(7*time.Hour)))
			},
			"relative":  func() error { time.Sleep(time.Millisecond); return first(l.Every(bg, "job", fromStart(time.Minute))) },
			"backwards": func() error { return first(l.Every(bg, "job", fromStart(-time.Minute))) },
		} {
			if err := call(); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Valid input: Every serves the only tick, and yields nothing after its context has ended.
		must.Report(t, first(l.Every(bg, "job", once(time.Now().Add(time.Hour)))))
		must.Report(t, first(l.Every(ended(), "job", holdfast.Period(time.Minute))))
		// A Locker that is closed while Every waits.
		time.AfterFunc(time.Second, func() { _ = l.Close(bg) })
		if err := first(l.Every(bg, "job", holdfast.Period(time.Minute))); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
	})
}

// first returns the error of the first tick, or nil if there is no tick.
func first(ticks func(func(holdfast.Tick, error) bool)) (first error) {
	for _, err := range ticks {
		return err
	}
	return nil
}
