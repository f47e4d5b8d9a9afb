package shape

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The events. Changes that cancel out between two states cause no event.
const (
	Held     = "held"     // the holder held the lock when the watch began
	Free     = "free"     // no holder and no waiter when the watch began
	Granted  = "granted"  //
	Released = "released" // the grant has ended: released, expired, or broken
	Waiting  = "waiting"  // the waiter is in the queue, perhaps from before the watch
	Left     = "left"     // the waiter has left the queue, and no state shows it as a holder
	Noted    = "noted"    // a holder's note has changed
	Broken   = "broken"   // the store cannot read the record any more, or could not when the watch began
)

// Event is the JSON object that `holdfast watch --json` prints for each event.
type Event struct {
	Time   string  `json:"time"`
	Name   string  `json:"name"`
	Event  string  `json:"event"`
	Holder *Holder `json:"holder,omitempty"`
	Waiter *Waiter `json:"waiter,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Follower compares successive states of a store's locks, and reports the differences as events. It
// keeps the states of the last call of Next.
type Follower struct {
	last  map[string]driver.State
	begun bool
}

// grant identifies a grant. The ID alone does not: at some stores another grant may have the same
// ID later. A token is never used twice.
type grant struct {
	id    string
	token uint64
}

// Next returns the differences between the states of the last call and the new states. Events are
// sorted by name. For one name, releases precede grants.
func (f *Follower) Next(states []driver.State, now time.Time) []Event {
	next := make(map[string]driver.State, len(states))
	names := map[string]bool{}
	for _, st := range states {
		if st.Err != nil { // its holders are unknown, and may be those of before
			before := f.last[st.Name]
			st.Holders, st.Waiters = before.Holders, before.Waiters
		}
		next[st.Name] = st
		names[st.Name] = true
	}
	for name := range f.last {
		names[name] = true
	}
	var events []Event
	for _, name := range slices.Sorted(maps.Keys(names)) {
		events = append(events, f.compare(name, f.last[name], next[name], now)...)
	}
	f.last, f.begun = next, true
	return events
}

// compare returns the differences between two states of one name.
func (f *Follower) compare(name string, before, after driver.State, now time.Time) []Event {
	var events []Event
	at := Time(now)
	holder := func(what string, h driver.Holder) {
		s := OfHolder(h, now)
		events = append(events, Event{Time: at, Name: name, Event: what, Holder: &s})
	}
	waiter := func(what string, position int, w driver.Waiter) {
		s := OfWaiter(w, position, now)
		events = append(events, Event{Time: at, Name: name, Event: what, Waiter: &s})
	}
	if after.Err != nil {
		if text := after.Err.Error(); before.Err == nil || before.Err.Error() != text {
			events = append(events, Event{Time: at, Name: name, Event: Broken, Error: text})
		}
		return events
	}
	if !f.begun && len(after.Holders)+len(after.Waiters) == 0 {
		return []Event{{Time: at, Name: name, Event: Free}}
	}
	grantsBefore, grantsAfter := grants(before.Holders), grants(after.Holders)
	waitersBefore, waitersAfter := waiterIDs(before.Waiters), waiterIDs(after.Waiters)
	for _, h := range before.Holders {
		if _, ok := grantsAfter[grant{h.ID, h.Token}]; !ok {
			holder(Released, h)
		}
	}
	holderIDs := map[string]bool{}
	for _, h := range after.Holders {
		holderIDs[h.ID] = true
	}
	for i, w := range before.Waiters {
		if !waitersAfter[w.ID] && !holderIDs[w.ID] {
			waiter(Left, i+1, w)
		}
	}
	for _, h := range after.Holders {
		earlier, ok := grantsBefore[grant{h.ID, h.Token}]
		switch {
		case !f.begun:
			holder(Held, h)
		case !ok:
			holder(Granted, h)
		case earlier.Note != h.Note:
			holder(Noted, h)
		}
	}
	for i, w := range after.Waiters {
		if !waitersBefore[w.ID] {
			waiter(Waiting, i+1, w)
		}
	}
	return events
}

func grants(holders []driver.Holder) map[grant]driver.Holder {
	m := make(map[grant]driver.Holder, len(holders))
	for _, h := range holders {
		m[grant{h.ID, h.Token}] = h
	}
	return m
}

func waiterIDs(waiters []driver.Waiter) map[string]bool {
	m := make(map[string]bool, len(waiters))
	for _, w := range waiters {
		m[w.ID] = true
	}
	return m
}
