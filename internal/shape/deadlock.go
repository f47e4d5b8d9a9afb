package shape

import (
	"cmp"
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// Process names a process by what it records with its locks.
type Process struct {
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Instance string `json:"instance"`
}

// Wait is one step of a deadlock: a process waits for a name, and another one holds it.
type Wait struct {
	Name   string  `json:"name"`
	Waiter Process `json:"waiter"`
	Holder Process `json:"holder"`
}

// Deadlocks returns cycles of processes that wait for one another, each once. The holder of a step is the
// waiter of the next one, and the last holder is the first waiter.
//
// Such a cycle is a deadlock if each process waits with one goroutine while it holds its lock with the same one. A
// process with several independent goroutines, such as a gateway, may only look so. A process that waits for itself
// is therefore left out, and so is a client that does not record its process. A permit of a semaphore may come from any
// holder, so only waits of which one side is exclusive count.
func Deadlocks(states []driver.State) [][]Wait {
	waits := map[Process][]Wait{}
	seen := map[[2]Process]bool{}
	for _, st := range states {
		for _, w := range st.Waiters {
			from := ProcessOf(w.Owner)
			for _, h := range st.Holders {
				to := ProcessOf(h.Owner)
				exclusive := w.Limit == driver.Exclusive || h.Limit == driver.Exclusive
				if pair := [2]Process{from, to}; exclusive && from != to && from.PID != 0 && to.PID != 0 && !seen[pair] {
					seen[pair] = true
					waits[from] = append(waits[from], Wait{st.Name, from, to})
				}
			}
		}
	}
	prune(waits)
	var cycles [][]Wait
	reported := map[Process]bool{}
	for _, p := range slices.SortedFunc(maps.Keys(waits), compareProcesses) {
		if reported[p] {
			continue
		}
		cycle := shortestCycle(waits, p)
		for _, w := range cycle {
			reported[w.Waiter] = true
		}
		if cycle != nil {
			cycles = append(cycles, cycle)
		}
	}
	return cycles
}

// Through returns the cycles that pass through a name.
func Through(cycles [][]Wait, name string) [][]Wait {
	return slices.DeleteFunc(slices.Clone(cycles), func(c []Wait) bool {
		return !slices.ContainsFunc(c, func(w Wait) bool { return w.Name == name })
	})
}

// prune removes waits for processes that do not wait, until each process leads to a cycle. Most states have none.
func prune(waits map[Process][]Wait) {
	for before := -1; before != len(waits); {
		before = len(waits)
		for p, all := range waits {
			all = slices.DeleteFunc(all, func(w Wait) bool { return len(waits[w.Holder]) == 0 })
			if waits[p] = all; len(all) == 0 {
				delete(waits, p)
			}
		}
	}
}

// shortestCycle returns a shortest way from a process back to it, nil if there is none.
func shortestCycle(waits map[Process][]Wait, start Process) []Wait {
	by := map[Process]Wait{} // the wait that reached a process first
	for queue := []Process{start}; len(queue) > 0; queue = queue[1:] {
		for _, w := range waits[queue[0]] {
			if _, known := by[w.Holder]; known {
				continue
			}
			by[w.Holder] = w
			if w.Holder != start {
				queue = append(queue, w.Holder)
				continue
			}
			cycle := []Wait{w}
			for cycle[0].Waiter != start {
				cycle = slices.Insert(cycle, 0, by[cycle[0].Waiter])
			}
			return cycle
		}
	}
	return nil
}

// ProcessOf returns the process of an owner.
func ProcessOf(o driver.Owner) Process { return Process{o.Host, o.PID, o.Instance} }

func compareProcesses(a, b Process) int {
	return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Instance, b.Instance))
}
