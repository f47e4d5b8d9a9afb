package shape

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// Collect returns all states of a list, or its error.
func Collect(list iter.Seq2[holdfast.State, error]) (all []holdfast.State, err error) {
	for st, err := range list {
		if err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, nil
}

// Jobs replaces the locks of each job of Locker.Every by one state with the name of the job: the lock of its
// newest tick. A prefix that is longer than the job's name selects single locks, so they stay.
func Jobs(states []holdfast.State, prefix string) []holdfast.State {
	var all []holdfast.State
	jobs := map[string][]holdfast.State{}
	for _, st := range states {
		job, _, ok := ticks.Job(st.Name)
		if _, kept := tick(st); ok && kept && strings.HasPrefix(job, prefix) {
			jobs[job] = append(jobs[job], st)
		} else {
			all = append(all, st)
		}
	}
	for job, locks := range jobs {
		newest, _ := NewestTick(locks)
		h := newest.Holders[0]
		h.Note = strings.TrimPrefix(fmt.Sprintf("%s, %d locks of Every", h.Note, len(locks)), ", ")
		all = append(all, holdfast.State{Name: job, Holders: []holdfast.Holder{h}})
	}
	slices.SortStableFunc(all, func(a, b holdfast.State) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// NewestTick returns the lock of a job's newest tick, and of its two locks the first one. It returns false if none of
// the states is that of a tick.
func NewestTick(states []holdfast.State) (newest holdfast.State, found bool) {
	var last time.Time
	for _, st := range states {
		if at, ok := tick(st); ok && (!found || at.After(last)) {
			newest, last, found = st, at, true
		}
	}
	return newest, found
}

// tick returns the tick that a lock is held for, and false for other locks.
func tick(st holdfast.State) (time.Time, bool) {
	if len(st.Holders) != 1 || len(st.Waiters) > 0 {
		return time.Time{}, false
	}
	return ticks.At(st.Holders[0].Reason)
}

// Inspect returns the state of a name. For a job of Locker.Every it is that of the lock that ls shows in the row of
// the job, with the name of that lock.
func Inspect(ctx context.Context, l *holdfast.Locker, name string) (holdfast.State, error) {
	st, err := l.Inspect(ctx, name)
	if err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		return st, err
	}
	// A list of all names that begin with the job's can take a minute, for example on a large Redis.
	names := ticks.Locks(name)
	states := make([]holdfast.State, len(names))
	var all sync.WaitGroup
	for i, n := range names {
		all.Go(func() { states[i], _ = l.Inspect(ctx, n) })
	}
	all.Wait()
	if newest, ok := NewestTick(states); ok {
		return newest, nil
	}
	return st, nil
}
