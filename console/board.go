package console

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/shape"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// The events that the board adds to those of a watch.
const (
	eventLost  = "lost"  // a lock that a client held through the handler was lost
	eventTaken = "taken" // a client of the handler has broken a lock
)

const (
	// maxEvents limits the events that a board keeps. The oldest are dropped.
	maxEvents = 20_000
	// rateTime is the time over which rates are averaged.
	rateTime = 10 * time.Second
	// refreshInterval is the interval at which the TTLs are read while a page is open. A watch does not report them.
	refreshInterval = 5 * time.Second
	refreshTimeout  = 10 * time.Second
)

// board is what this process has seen of one store: the states of its locks now, and the latest changes.
type board struct {
	name    string
	locker  *holdfast.Locker
	viewers atomic.Int32

	mu     sync.Mutex
	now    snapshot
	follow shape.Follower
	events []seenEvent
}

// snapshot is what a board shows at one time.
type snapshot struct {
	states  []holdfast.State // sorted by name
	at      time.Time        // of states and their TTLs; zero before the first
	err     error            // the store does not answer, or shows no locks
	cycles  [][]shape.Wait
	changed chan struct{} // closed at the next change
}

type seenEvent struct {
	at time.Time
	shape.Event
}

func newBoard(name string, l *holdfast.Locker) *board {
	return &board{name: name, locker: l, now: snapshot{changed: make(chan struct{})}}
}

// watch follows the store until ctx ends.
func (b *board) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for states, err := range b.locker.WatchAll(ctx) {
			if err != nil {
				b.failed(err)
				break
			}
			b.update(states)
		}
		_ = backoff.Sleep(ctx, time.Second)
	}
}

// refresh reads the TTLs again while a page is open. It also finds that the store does not answer, or answers again.
func (b *board) refresh(ctx context.Context) {
	for backoff.Sleep(ctx, refreshInterval) == nil {
		if b.viewers.Load() == 0 {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, refreshTimeout)
		states, err := shape.Collect(b.locker.List(limited, ""))
		cancel()
		if err != nil {
			b.failed(err)
		} else {
			b.setTTLs(states)
		}
	}
}

// notify wakes the pages. The board's mutex is held.
func (b *board) notify() {
	close(b.now.changed)
	b.now.changed = make(chan struct{})
}

func (b *board) failed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now.err = err
	b.notify()
}

func (b *board) update(states []holdfast.State) {
	cycles := shape.Deadlocks(states)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now.states, b.now.cycles, b.now.at, b.now.err = states, cycles, time.Now(), nil
	for _, e := range b.follow.Next(states, b.now.at) {
		b.add(e)
	}
	b.notify()
}

type grantKey struct {
	name, id string
	token    uint64
}

// setTTLs takes over the TTLs of the grants in the board. The states themselves may be older than those of the
// watch.
func (b *board) setTTLs(fresh []holdfast.State) {
	ttls := map[grantKey]time.Duration{}
	for _, st := range fresh {
		for _, h := range st.Holders {
			ttls[grantKey{st.Name, h.ID, h.Token}] = h.TTL
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	elapsed := time.Since(b.now.at)
	states := slices.Clone(b.now.states) // a page may read the old ones
	for i, st := range states {
		states[i].Holders = slices.Clone(st.Holders)
		for j, h := range st.Holders {
			ttl, ok := ttls[grantKey{st.Name, h.ID, h.Token}]
			if !ok && h.TTL > 0 && h.TTL != forever {
				ttl, ok = max(h.TTL-elapsed, 1), true
			}
			if ok {
				states[i].Holders[j].TTL = ttl
			}
		}
	}
	b.now.states, b.now.at, b.now.err = states, time.Now(), nil
	b.notify()
}

// add appends an event. The board's mutex is held.
func (b *board) add(e shape.Event) {
	if len(b.events) >= maxEvents {
		b.events = slices.Delete(b.events, 0, maxEvents/4)
	}
	b.events = append(b.events, seenEvent{time.Now(), e})
}

// note adds an event that no watch reports.
func (b *board) note(name, event, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(shape.Event{Time: shape.Time(time.Now()), Name: name, Event: event, Error: text})
	b.notify()
}

func (b *board) snapshot() snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// recent returns the events that keep selects, at most the newest most.
func (b *board) recent(most int, keep func(*seenEvent) bool) []shape.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := []shape.Event{}
	for i := len(b.events) - 1; i >= 0 && len(found) < most; i-- {
		if keep(&b.events[i]) {
			found = append(found, b.events[i].Event)
		}
	}
	slices.Reverse(found)
	return found
}

// rates returns the numbers of grants and of losses in the last rateTime, of the names that may be seen.
func (b *board) rates(see []string) (grants, losses int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.events) - 1; i >= 0 && time.Since(b.events[i].at) < rateTime; i-- {
		switch e := b.events[i]; {
		case !allowed(see, e.Name):
		case e.Event.Event == shape.Granted:
			grants++
		case e.Event.Event == eventLost:
			losses++
		}
	}
	return grants, losses
}

// lookup returns the state of a name. For a job of Locker.Every it is that of its newest tick.
func (s *snapshot) lookup(name string) holdfast.State {
	find := func(name string) holdfast.State {
		if i, ok := slices.BinarySearchFunc(s.states, name, func(st holdfast.State, name string) int {
			return strings.Compare(st.Name, name)
		}); ok {
			return s.states[i]
		}
		return holdfast.State{Name: name}
	}
	if st := find(name); len(st.Holders)+len(st.Waiters) > 0 || st.Err != nil {
		return st
	}
	var locks []holdfast.State
	for _, n := range ticks.Locks(name) {
		locks = append(locks, find(n))
	}
	if newest, ok := shape.NewestTick(locks); ok {
		return newest
	}
	return holdfast.State{Name: name}
}

// text returns the text of an error, "" for nil.
func text(err error) string {
	if err == nil || errors.Is(err, context.Canceled) {
		return ""
	}
	return err.Error()
}
