//go:build linux

package sqlite

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/sqlitestore"
)

// TestMain lets this binary be a worker of the check that it runs.
func TestMain(m *testing.M) {
	check.MaybeWorker()
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	f := newFaults(t)
	drivertest.Run(t, drivertest.Harness{
		Open:       func(t testing.TB, namespace string) driver.Store { return f.open(t, namespace) },
		Stop:       f.begin,
		Start:      f.end,
		Delay:      func(_ testing.TB, d time.Duration) { f.delay.Store(int64(d)) },
		LoseAnswer: func(_ testing.TB, after int) { f.lose.Store(after >= 0) },
		Corrupt:    f.corrupt,
		Bubble:     true,
	})
}

func TestOpenRefusesInvalidArguments(t *testing.T) {
	dir := t.TempDir()
	if _, err := sqlitestore.Open(dir+"/locks.db", "a\x00b"); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a namespace with a NUL byte: %v", err)
	}
	if _, err := sqlitestore.Open(dir+"/missing/locks.db", ""); driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := sqlitestore.Open("/proc/locks.db", ""); driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "is on proc") {
		t.Errorf("a file system that is not of this machine: %v", err)
	}
	for _, u := range []string{"sqlite:relative.db", "sqlite://host" + dir + "/locks.db", "sqlite://" + dir + "/locks.db?mode=ro", "sqlite:"} {
		if _, err := holdfast.Open(t.Context(), u); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: %v", u, err)
		}
	}
}

// TestReplacedFileEndsContext: the holder notices that its file is gone, and a lock in the next file is a lock for all.
func TestReplacedFileEndsContext(t *testing.T) {
	for what, replace := range map[string]func(path string) error{
		"deleted":  os.Remove,
		"replaced": func(path string) error { return os.Rename(path, path+".old") },
	} {
		t.Run(what, func(t *testing.T) {
			path := t.TempDir() + "/locks.db"
			open := func() *holdfast.Locker {
				l, err := holdfast.Open(t.Context(), "sqlite://"+path)
				must.Succeed(t, err)
				t.Cleanup(func() { _ = l.Close(context.Background()) })
				return l
			}
			one, two := open(), open()
			before, err := one.Lock(t.Context(), "a")
			must.Succeed(t, err)
			if _, err := two.TryLock(t.Context(), "a"); !errors.Is(err, holdfast.ErrBusy) {
				t.Fatal(err)
			}
			for _, file := range []string{path, path + "-wal", path + "-shm"} {
				must.Succeed(t, replace(file))
			}
			after, err := two.TryLock(t.Context(), "a")
			must.Succeed(t, err)
			<-before.Context().Done()
			if _, err := one.TryLock(t.Context(), "a"); !errors.Is(err, holdfast.ErrBusy) {
				t.Errorf("beside the lock in the new file: %v", err)
			}
			must.Report(t, after.Unlock())
		})
	}
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
	}})
	if s := r.Stats; s.Grants < 10 || s.Refusals == 0 || s.Writes == 0 || s.Faults["kill"]+s.Faults["pause"] == 0 {
		t.Errorf("%+v: too few events for a useful test", s)
	}
}

func TestValues(t *testing.T) {
	f := newFaults(t)
	drivertest.RunValues(t, func(t testing.TB, namespace string) *record.Store {
		return f.open(t, namespace)
	})
}

// TestExampleHasFewLines: an author of a store reads all of it.
func TestExampleHasFewLines(t *testing.T) {
	text, err := os.ReadFile("../../../sqlitestore/store.go")
	must.Succeed(t, err)
	if n := strings.Count(string(text), "\n"); n > 180 {
		t.Errorf("the store has %d lines, want at most 180", n)
	}
}
