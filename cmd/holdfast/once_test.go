//go:build linux || darwin

package main_test

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// TestOnceRunsUntilItSucceeds: with --once, a command that has failed runs again at the next call. A
// command that has succeeded does not.
func TestOnceRunsUntilItSucceeds(t *testing.T) {
	w := withStore(t)
	count := func() int {
		data, err := os.ReadFile(w.path("runs"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(data), "\n")
	}
	script := func(status string) string { return "echo >> " + w.path("runs") + "; exit " + status }
	for i, step := range []struct {
		key, status string
		want, runs  int
	}{
		{"k", "3", 3, 1},
		{"k", "0", 0, 2},
		{"k", "0", 0, 2},
		{"k", "3", 0, 2},
		{"another", "0", 0, 3},
	} {
		r := w.run("run", "--once", step.key, "x", "--", "sh", "-c", script(step.status))
		if r.status != step.want || count() != step.runs {
			t.Errorf("step %d: status %d and %d runs, want %d and %d: %s", i, r.status, count(), step.want, step.runs, r.stderr)
		}
	}
	r := w.run("run", "--once", "k", "x", "--", "false")
	if r.status != 0 || !strings.Contains(r.stderr, "is done since") || !strings.Contains(r.stderr, "by pid") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
	// The key is marked, so a run with --try succeeds although another client holds the lock.
	k := mustLock(t, w.locker(), "x")
	defer k.Unlock()
	if r := w.run("run", "--once", "k", "--try", "x", "--", "false"); r.status != 0 {
		t.Errorf("the lock is held: status %d, %s", r.status, r.stderr)
	}
	if r := w.run("run", "--once", "new", "--try", "x", "--", "true"); r.status != 75 {
		t.Errorf("the lock is held and nothing is done: status %d, %s", r.status, r.stderr)
	}
}

// TestOnceOfManyRunsOne: several runs with the same key start at once. One of them runs its command.
// The others wait for the lock, and do not run their commands.
func TestOnceOfManyRunsOne(t *testing.T) {
	w := withStore(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if r := w.run("run", "--once", "k", "x", "--", "sh", "-c", "echo >> "+w.path("runs")); r.status != 0 {
				t.Errorf("status %d: %s", r.status, r.stderr)
			}
		})
	}
	all.Wait()
	if data, err := os.ReadFile(w.path("runs")); err != nil || string(data) != "\n" {
		t.Errorf("it ran %q, %v; want once", data, err)
	}
}
