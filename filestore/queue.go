//go:build linux || darwin

package filestore

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// key identifies one name in one namespace.
type key struct{ ns, name string }

func (e *entry) is(k key) bool { return e.name == k.name && e.ns == k.ns }

// state is the content of a bucket, with the entries in order of arrival.
type state struct {
	header
	entries []entry
	// notices are the messages that the store sends to sessions after it has written the change.
	notices []notice
}

// notice is a message for the session of an entry.
type notice struct {
	kind byte
	sid  string
	id   string
}

// countHolders returns the number of holders of a name and the smallest of their limits.
func (st *state) countHolders(k key) (holders, least int) {
	least = math.MaxInt
	for i := range st.entries {
		if e := &st.entries[i]; e.token > 0 && e.is(k) {
			holders++
			least = min(least, e.limit)
		}
	}
	return holders, least
}

// awaited reports whether the name has waiters.
func (st *state) awaited(k key) bool {
	return slices.ContainsFunc(st.entries, func(e entry) bool { return e.token == 0 && e.is(k) })
}

// find returns the index of a request's entry, or -1 if there is none.
func (st *state) find(k key, id string) int {
	for i := range st.entries {
		if e := &st.entries[i]; e.id == id && e.is(k) { // mutation: file-owner
			return i
		}
	}
	return -1
}

// slotFor returns the smallest free slot. There is always one, because the name has at most limit-1
// other holders.
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

// recordWatched records which sessions each waiter of the name watches. After a change, grantNext
// notifies the waiters that have to watch other sessions.
func (st *state) recordWatched(k key) {
	ahead := ""
	for i := range st.entries {
		if e := &st.entries[i]; e.token == 0 && e.is(k) {
			e.wasAhead, ahead = ahead, e.sid
		}
	}
}

// grantNext grants the name to the first waiters as long as the limits allow that. It notifies these
// waiters, and those that have to watch other sessions now.
func (b *bucket) grantNext(k key) error {
	holders, least := b.countHolders(k)
	ahead := "" // the session of the waiter before e; there is none before the first
	var failed error
	for i := range b.entries {
		e := &b.entries[i]
		if e.token != 0 || !e.is(k) {
			continue
		}
		if ahead == "" && failed == nil && holders+1 <= min(least, e.limit) {
			if failed = b.grant(e); failed == nil {
				holders, least = holders+1, min(least, e.limit)
				b.notices = append(b.notices, notice{kind: msgReread, sid: e.sid, id: e.id}) // mutation: file-wake
				continue
			}
		}
		if e.wasAhead != ahead && (ahead != "" || !b.heldOnlyBy(k, e.wasAhead)) {
			b.notices = append(b.notices, notice{kind: msgReread, sid: e.sid, id: e.id})
		}
		ahead = e.sid
	}
	return failed
}

// keep leaves a grant in place until a time, without its session. It notifies the first waiter, which has to watch
// that time.
func (st *state) keep(e *entry, until int64) {
	e.id, e.sid, e.until, e.endRequested = "", "", until, false
	k := key{e.ns, e.name}
	if i := slices.IndexFunc(st.entries, func(e entry) bool { return e.token == 0 && e.is(k) }); i >= 0 {
		st.notices = append(st.notices, notice{kind: msgReread, sid: st.entries[i].sid, id: st.entries[i].id})
	}
}

// overfull reports whether a name has more holders than their limits allow. No store writes such a list.
func (st *state) overfull(k key) bool {
	holders, least := st.countHolders(k)
	return holders > least
}

// heldOnlyBy reports whether all holders of the name belong to one session. Then the new first waiter,
// which has watched this session, need not watch others.
func (st *state) heldOnlyBy(k key, sid string) bool {
	return !slices.ContainsFunc(st.entries, func(e entry) bool { return e.token > 0 && e.sid != sid && e.is(k) })
}

// maxTokens is the largest number of tokens that one grant may have.
const maxTokens = 1024

// grant gives the entry the next tokens and a slot. The last token is the clock's time, unless the counter is
// ahead of it. So tokens also rise after an older copy of the file was restored, and in a new file. While the counter
// is ahead, the entry gets a single token.
func (b *bucket) grant(e *entry) error {
	now, tokens := b.store.now(), uint64(1)
	if free := now - int64(b.last); e.limit == driver.Exclusive && free > 1 {
		tokens = uint64(min(int64(max(e.tokens, 1)), free))
	}
	if last := now - int64(tokens); last > int64(b.last) {
		b.last = uint64(last) // mutation: file-clock
	}
	if b.last+tokens > b.ceiling {
		if err := b.reserve(); err != nil {
			return err
		}
	}
	e.token, e.tokens = b.last+1, int(tokens)
	b.last += tokens // mutation: file-reserved
	e.slot = b.slotFor(key{e.ns, e.name}, e.limit)
	e.since = now
	return nil
}

// drop removes the entries that match, and grants their names to the waiters that the entries blocked.
func (b *bucket) drop(match func(*entry) bool) (dropped bool, err error) {
	keys := map[key]bool{}
	for i := range b.entries {
		if e := &b.entries[i]; match(e) {
			keys[key{e.ns, e.name}] = true
		}
	}
	if len(keys) == 0 {
		return false, nil
	}
	maps.DeleteFunc(keys, func(k key, _ bool) bool { return !b.awaited(k) })
	for k := range keys {
		b.recordWatched(k)
	}
	b.entries = slices.DeleteFunc(b.entries, func(e entry) bool { return match(&e) })
	for k := range keys {
		err = cmp.Or(err, b.grantNext(k))
	}
	return true, err
}
