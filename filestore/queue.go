//go:build linux || darwin

package filestore

import (
	"cmp"
	"math"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// key is one name in one namespace.
type key struct{ ns, name string }

func (e *entry) is(k key) bool { return e.name == k.name && e.ns == k.ns }

// state is what a bucket says, the entries in order of arrival.
type state struct {
	header
	entries []entry
	// notices are what the sessions concerned must hear once the change is
	// written.
	notices []notice
}

// notice goes to the session that an entry lives with.
type notice struct {
	kind  byte
	sid   string
	id    string
	token uint64
	mark  uint64 // see entry.mark
}

// census counts the holders of a name and finds the smallest of their limits.
func (st *state) census(k key) (holders, least int) {
	least = math.MaxInt
	for i := range st.entries {
		if e := &st.entries[i]; e.token > 0 && e.is(k) {
			holders++
			least = min(least, e.limit)
		}
	}
	return holders, least
}

// awaited tells whether anyone waits for the name.
func (st *state) awaited(k key) bool {
	return slices.ContainsFunc(st.entries, func(e entry) bool { return e.token == 0 && e.is(k) })
}

// find is the index of a request, -1 if it left nothing here.
func (st *state) find(k key, id string) int {
	for i := range st.entries {
		if e := &st.entries[i]; e.id == id && e.is(k) {
			return i
		}
	}
	return -1
}

// slotFor is the smallest free permit. One is free: no more than limit-1 grants
// stand beside the newcomer.
func (st *state) slotFor(k key, limit int) int {
	if limit == driver.Exclusive || limit > driver.MaxLimit {
		return driver.NoSlot
	}
	var taken [driver.MaxLimit/64 + 1]uint64
	for i := range st.entries {
		if e := &st.entries[i]; e.token > 0 && e.slot >= 0 && e.is(k) {
			taken[e.slot/64] |= 1 << (e.slot % 64)
		}
	}
	slot := 0
	for taken[slot/64]&(1<<(slot%64)) != 0 {
		slot++
	}
	return slot
}

// before notes what each waiter of the name watches, so that settle can tell
// those for whom that changes.
func (st *state) before(k key) {
	first, ahead := true, ""
	for i := range st.entries {
		if e := &st.entries[i]; e.token == 0 && e.is(k) {
			e.first, e.ahead = first, ahead
			first, ahead = false, e.sid
		}
	}
}

// settle grants the name to the waiters at the head whom the rule admits, and
// tells the others that watch something else now. reserve makes room for tokens.
func (st *state) settle(k key, now int64, reserve func() error) error {
	holders, least := st.census(k)
	first, ahead := true, ""
	var failed error
	for i := range st.entries {
		e := &st.entries[i]
		if e.token != 0 || !e.is(k) {
			continue
		}
		if first && failed == nil && holders+1 <= min(least, e.limit) {
			if failed = st.grant(e, now, reserve); failed == nil {
				holders, least = holders+1, min(least, e.limit)
				st.notices = append(st.notices, notice{kind: tellGrant, sid: e.sid, id: e.id, token: e.token, mark: e.mark()})
				continue
			}
		}
		switch {
		case first && !e.first && !st.heldOnlyBy(k, e.ahead), !first && e.ahead != ahead:
			st.notices = append(st.notices, notice{kind: tellLook, sid: e.sid, id: e.id})
		}
		first, ahead = false, e.sid
	}
	return failed
}

// heldOnlyBy: the new head goes on watching the session it watched.
func (st *state) heldOnlyBy(k key, sid string) bool {
	return !slices.ContainsFunc(st.entries, func(e entry) bool { return e.token > 0 && e.sid != sid && e.is(k) })
}

// maxTokens is the most tokens that a grant has.
const maxTokens = 1024

// grant gives the entry the next tokens and a permit. The counter never gets ahead of the
// clock by reserved tokens: a counter that is made anew starts at the clock.
func (st *state) grant(e *entry, now int64, reserve func() error) error {
	tokens := uint64(1)
	if free := now - int64(st.last); e.limit == driver.Exclusive && free > 1 {
		tokens = uint64(min(int64(max(e.tokens, 1)), free))
	}
	if st.last+tokens > st.ceiling {
		if err := reserve(); err != nil {
			return err
		}
	}
	e.token, e.tokens = st.last+1, int(tokens)
	st.last += tokens
	e.slot = st.slotFor(key{e.ns, e.name}, e.limit)
	e.since = now
	return nil
}

// drop removes the entries that match and grants what they stood in the way of.
func (st *state) drop(match func(*entry) bool, now int64, reserve func() error) (dropped bool, err error) {
	var keys []key
	for i := range st.entries {
		if e := &st.entries[i]; match(e) && !slices.Contains(keys, key{e.ns, e.name}) {
			keys = append(keys, key{e.ns, e.name})
		}
	}
	if keys == nil {
		return false, nil
	}
	for _, k := range keys {
		st.before(k)
	}
	st.entries = slices.DeleteFunc(st.entries, func(e entry) bool { return match(&e) })
	for _, k := range keys {
		err = cmp.Or(err, st.settle(k, now, reserve))
	}
	return true, err
}
