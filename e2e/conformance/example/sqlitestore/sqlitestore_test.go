//go:build linux

package sqlitestore

import (
	"cmp"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
)

// TestMain lets this binary be a worker of the check that it runs.
func TestMain(m *testing.M) {
	check.MaybeWorker()
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	f := newFaults(t)
	drivertest.Run(t, drivertest.Harness{
		Open:       f.open,
		Stop:       f.begin,
		Start:      f.end,
		Delay:      func(_ testing.TB, d time.Duration) { f.delay.Store(int64(d)) },
		LoseAnswer: func(testing.TB, int) { f.lose.Store(true) },
		Bubble:     true,
		Leftovers: func(t testing.TB) []string {
			left, err := f.left(t.Context())
			if err != nil {
				t.Error(err)
			}
			return left
		},
	})
}

func TestTorture(t *testing.T) {
	f := newFaults(t)
	r := checktest.Run(t, check.Config{Duration: 10 * time.Second, Round: 5 * time.Second, Target: &check.Target{
		URL: "sqlite://" + f.file,
		Faults: []check.StoreFault{{
			Kind:  "stop",
			Begin: func(context.Context, check.Fault) error { f.begin(t); return nil },
			End:   func(context.Context, check.Fault) error { f.end(t); return nil },
		}},
		Left: f.leftInTheEnd,
	}})
	if s := r.Stats; s.Grants < 10 || s.Queued == 0 || s.Writes == 0 || s.Faults["kill"]+s.Faults["pause"] == 0 {
		t.Errorf("%+v: too few events for a useful test", s)
	}
}

// leftInTheEnd waits until the entries and grants of killed processes have expired, and returns the
// others. A grant's TTL is at most sixteen times the check's TTL of 600 ms.
func (f *faults) leftInTheEnd(ctx context.Context) (left []string, err error) {
	end := time.Now().Add(entryLife + 20*time.Second)
	for {
		// A step on any name removes expired entries.
		s, err := Open(ctx, f.file, "")
		if err != nil {
			return nil, err
		}
		err = s.step(ctx, func(t *step) error { t.state("any"); return nil })
		if err := cmp.Or(err, s.Close(ctx)); err != nil {
			return nil, err
		}
		if left, err = f.left(ctx); err != nil || len(left) == 0 || time.Now().After(end) {
			return left, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestEntryLastsWithItsWaiter: a waiter does not try for a while, and a request comes when the lock is
// free. It may be granted only if the waiter's process has ended, or stands still for long.
func TestEntryLastsWithItsWaiter(t *testing.T) {
	for name, test := range map[string]struct {
		silent       time.Duration // since its last try
		ends, passed bool
	}{
		"starved": {silent: entryLife},
		"stopped": {silent: stoppedLife, passed: true},
		"ended":   {silent: entryLife, ends: true, passed: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaults(t)
			open := func() *Store {
				s := f.open(t, "").(*Store)
				t.Cleanup(func() { _ = s.Close(context.Background()) })
				return s
			}
			request := func(id string) driver.Request {
				return driver.Request{ID: id, Name: "job", Limit: driver.Exclusive, TTL: time.Minute}
			}
			holder, waiter, late := open(), open(), open()
			g, err := holder.Acquire(t.Context(), request("holder"))
			if err != nil {
				t.Fatal(err)
			}
			r, from := request("waiter"), &requester{queued: make(chan struct{}, 1)}
			r.Wait, r.From = true, from
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			granted := make(chan error, 1)
			go func() {
				_, err := waiter.Acquire(ctx, r)
				granted <- err
			}()
			<-from.queued
			only, err := waiter.db.Conn(t.Context()) // without its connection, the waiter cannot try
			if err != nil {
				t.Fatal(err)
			}
			if test.ends {
				cancel()
				if err := <-granted; waiter.Classify(err) != driver.CodeUnknown {
					t.Fatal(err)
				}
			}
			if _, err := f.plain.Exec("UPDATE entries SET expires = expires - ? WHERE NOT granted", int64(test.silent)); err != nil {
				t.Fatal(err)
			}
			if err := holder.Release(t.Context(), g, 0); err != nil {
				t.Fatal(err)
			}
			g, err = late.Acquire(t.Context(), request("late"))
			switch {
			case !test.passed && late.Classify(err) != driver.CodeBusy:
				t.Errorf("a request behind the waiter: %+v, %v, want busy", g, err)
			case test.passed && err != nil:
				t.Errorf("a request behind the waiter: %v, want a grant", err)
			}
			if err == nil {
				if err := late.Release(t.Context(), g, 0); err != nil {
					t.Error(err)
				}
			}
			if err := only.Close(); err != nil {
				t.Error(err)
			}
			if test.ends {
				return
			}
			if err := <-granted; err != nil {
				t.Errorf("the waiter: %v", err)
			}
		})
	}
}

// requester reports the first call of Queued.
type requester struct{ queued chan struct{} }

func (*requester) Owner() driver.Owner      { return driver.Owner{} }
func (*requester) Lost(driver.Cause, error) {}
func (r *requester) Queued([]driver.Holder) {
	select {
	case r.queued <- struct{}{}:
	default:
	}
}

// TestExampleHasFewLines: an author of a store reads all of it.
func TestExampleHasFewLines(t *testing.T) {
	text, err := os.ReadFile("sqlitestore.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n >= 300 {
		t.Errorf("the store has %d lines, want fewer than 300", n)
	}
}
