package shape_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// TestDeadlocksAreFound requires that each cycle of processes is found once, and nothing else.
func TestDeadlocksAreFound(t *testing.T) {
	const exclusive, shared = driver.Exclusive, driver.Unlimited
	// lock returns a name with holders and waiters, given by their process numbers.
	lock := func(name string, limit int, holders, waiters []int) driver.State {
		st := driver.State{Name: name}
		for _, pid := range holders {
			st.Holders = append(st.Holders, driver.Holder{Owner: driver.Owner{Host: "h", PID: pid}, Limit: limit})
		}
		for _, pid := range waiters {
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: driver.Owner{Host: "h", PID: pid}, Limit: limit})
		}
		return st
	}
	type (
		pids   = []int
		states = []driver.State
	)
	a12, b21 := lock("a", exclusive, pids{1}, pids{2}), lock("b", exclusive, pids{2}, pids{1})
	for name, c := range map[string]struct {
		states states
		want   string
	}{
		"two processes":       {states{a12, b21}, "1-b-2 2-a-1"},
		"a queue is none":     {states{lock("a", exclusive, pids{1}, pids{2, 3}), lock("b", exclusive, pids{2}, pids{3})}, ""},
		"one process is none": {states{lock("a", exclusive, pids{1}, pids{1}), lock("b", exclusive, pids{1}, pids{1})}, ""},
		"unknown clients":     {states{lock("a", exclusive, pids{0}, pids{2}), lock("b", exclusive, pids{2}, pids{0})}, ""},
		"permits":             {states{lock("a", 2, pids{1, 3}, pids{2}), lock("b", 2, pids{2, 4}, pids{1})}, ""},
		"readers alone":       {states{lock("a", shared, pids{1, 3}, nil), lock("b", exclusive, pids{2}, pids{1})}, ""},
		"three with a bystander": {states{lock("a", exclusive, pids{1}, pids{3, 9}), lock("b", exclusive, pids{2}, pids{1}),
			lock("c", exclusive, pids{3}, pids{2})}, "1-b-2 2-c-3 3-a-1"},
		"two cycles": {states{a12, b21, lock("c", exclusive, pids{3}, pids{4}),
			lock("d", exclusive, pids{4}, pids{3})}, "1-b-2 2-a-1; 3-d-4 4-c-3"},
		"cycles that share a process": {states{lock("a", exclusive, pids{1}, pids{2, 3}), lock("b", exclusive, pids{2}, pids{1, 3}),
			lock("c", exclusive, pids{3}, pids{2})}, "1-b-2 2-a-1; 3-b-2 2-c-3"},
		"many holders and waiters": {states{lock("a", exclusive, pids{1, 2}, pids{3}),
			lock("b", exclusive, pids{3}, pids{2})}, "2-b-3 3-a-2"},
	} {
		var cycles []string
		for _, cycle := range shape.Deadlocks(c.states) {
			var steps []string
			for _, w := range cycle {
				steps = append(steps, fmt.Sprintf("%d-%s-%d", w.Waiter.PID, w.Name, w.Holder.PID))
			}
			cycles = append(cycles, strings.Join(steps, " "))
		}
		if got := strings.Join(cycles, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
