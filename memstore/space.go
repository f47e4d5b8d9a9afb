package memstore

import (
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// The caller of every method here, except now and at, holds the space's mutex.

// now returns the present time, counted from the creation of the space, as deadlines are. It
// reads one clock; time.Now reads two.
func (sp *space) now() time.Duration { return time.Since(sp.started) }

// at returns a point in time, counted from the creation of the space.
func (sp *space) at(t time.Time) time.Duration { return t.Sub(sp.started) }

// open returns a name, and creates it if necessary.
func (sp *space) open(key string) *name {
	n := sp.names[key]
	if n != nil {
		return n
	}
	if last := len(sp.spare) - 1; last >= 0 {
		n, sp.spare = sp.spare[last], sp.spare[:last]
		n.key = key
	} else {
		n = &name{key: key}
	}
	sp.names[key], n.listed = n, true
	return n
}

// maxSpare is the number of names that are kept for reuse.
const maxSpare = 64

// tidy removes a name without holders and waiters.
func (sp *space) tidy(n *name) {
	if len(n.holders)+len(n.queue) > 0 || !n.listed {
		return
	}
	delete(sp.names, n.key)
	n.listed = false
	if n.timer != nil {
		n.timer.Stop()
		return // the timer may have fired already and refer to n
	}
	if len(sp.spare) < maxSpare {
		sp.spare = append(sp.spare, n)
	}
}

// admits is the rule: a grant of limit n never stands beside more than n-1 others.
func (n *name) admits(limit int) bool {
	least := limit
	for _, e := range n.holders {
		least = min(least, e.limit)
	}
	return len(n.holders) < least // mutation: memory-rule
}

func (sp *space) grant(e *entry) {
	if e.limit != driver.Exclusive {
		e.tokens = 1
	}
	e.token = sp.token + 1       // mutation: memory-token
	sp.token += uint64(e.tokens) // mutation: memory-reserved
	if e.limit > driver.Exclusive && e.limit <= driver.MaxLimit {
		e.slot = e.n.freeSlot()
	}
	e.n.holders = append(e.n.holders, e)
	sp.extend(e)
	e.owner.Since = e.sent.Time()
	sp.changed(e.n)
}

func (n *name) freeSlot() int {
	for slot := 0; ; slot++ {
		if !slices.ContainsFunc(n.holders, func(e *entry) bool { return e.slot == slot }) {
			return slot
		}
	}
}

// extend sets a new deadline, from now. The instant is taken first, so that the validity ends before the
// deadline.
func (sp *space) extend(e *entry) {
	e.sent = driver.NowInProcess()
	e.expires = sp.at(e.sent.Time().Add(e.ttl)) // mutation: memory-expiry
	if len(e.n.queue) > 0 {
		sp.arm(e.n)
	}
}

// confirm extends a grant if it still stands.
func (sp *space) confirm(e *entry) bool {
	sp.expire(e.n)
	if !slices.Contains(e.n.holders, e) {
		return false
	}
	sp.extend(e)
	return true
}

// find returns the standing grant of g.
func (sp *space) find(key string, g *driver.Grant) *entry {
	n := sp.names[key]
	if n == nil {
		return nil
	}
	sp.expire(n)
	for _, e := range n.holders {
		if e.id == g.ID && e.token == g.Token { // mutation: memory-owner
			return e
		}
	}
	sp.tidy(n)
	return nil
}

// drop removes a queue entry or a grant and serves the queue.
func (sp *space) drop(e *entry) {
	n := e.n
	if n == nil {
		return
	}
	before := len(n.holders) + len(n.queue)
	same := func(o *entry) bool { return o == e }
	n.holders = slices.DeleteFunc(n.holders, same)
	n.queue = slices.DeleteFunc(n.queue, same)
	if len(n.holders)+len(n.queue) != before {
		sp.changed(n)
	}
	sp.promote(n)
	sp.tidy(n)
}

// expire removes expired grants and serves the queue.
func (sp *space) expire(n *name) {
	if len(n.holders) == 0 {
		return
	}
	now := sp.now()
	expired := func(e *entry) bool { return now >= e.expires } // mutation: memory-expired
	if slices.ContainsFunc(n.holders, expired) {
		n.holders = slices.DeleteFunc(n.holders, expired)
		sp.changed(n)
		sp.promote(n)
	}
}

// promote grants the name to the first waiters, as long as the limits allow that.
func (sp *space) promote(n *name) {
	for len(n.queue) > 0 && n.admits(n.queue[0].limit) {
		e := n.queue[0]
		n.queue = slices.Delete(n.queue, 0, 1)
		sp.grant(e)
		close(e.granted) // mutation: memory-wake
	}
	if len(n.queue) > 0 {
		sp.arm(n)
	}
}

// arm sets the name's timer for the next expiry: while there are waiters, or while a released grant stands.
func (sp *space) arm(n *name) {
	if len(n.holders) == 0 {
		return
	}
	next := n.holders[0].expires
	for _, e := range n.holders {
		next = min(next, e.expires)
	}
	if n.timer == nil {
		n.timer = time.AfterFunc(next-sp.now(), func() {
			sp.mu.Lock()
			defer sp.mu.Unlock()
			sp.expire(n)
			if len(n.queue) > 0 || slices.ContainsFunc(n.holders, func(e *entry) bool { return e.store == nil }) {
				sp.arm(n)
			}
			sp.tidy(n)
		})
		return
	}
	n.timer.Reset(next - sp.now())
}

// changed notifies the watchers of a name.
func (sp *space) changed(n *name) {
	for w := range sp.watch {
		if got, ok := strings.CutPrefix(n.key, w.prefix); !ok || w.name != "" && got != w.name {
			continue
		}
		wakeup.Send(w.ch)
	}
}

func (n *name) all() []*entry { return append(slices.Clone(n.holders), n.queue...) }

func (sp *space) describe(n *name) []driver.Holder {
	var all []driver.Holder
	for _, e := range n.holders {
		h := driver.Holder{Owner: e.owner, Token: e.token, Tokens: e.tokens, Limit: e.limit, Slot: e.slot, TTL: e.expires - sp.now(), Kept: e.id == ""}
		if h.Kept {
			h.Note = driver.NoteKept
		}
		all = append(all, h)
	}
	return all
}

func (n *name) waiters() []driver.Waiter {
	var all []driver.Waiter
	for _, e := range n.queue {
		all = append(all, driver.Waiter{Owner: e.owner, Limit: e.limit})
	}
	return all
}

func (e *entry) toGrant() driver.Grant {
	return driver.Grant{ID: e.id, Name: nameOf(e.n.key), Limit: e.limit, Token: e.token, Tokens: e.tokens, SentAt: e.sent, TTL: e.ttl, Slot: e.slot}
}
