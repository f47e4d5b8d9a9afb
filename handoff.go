package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// maxHandoffs returns how often a lease may be handed off, and for how long after its
// grant; 0 means for as long as it is valid.
func (l *Locker) maxHandoffs(g *driver.Guarantees) (n int, within time.Duration) {
	switch {
	case l.cfg.hasHandoff:
		return l.cfg.handoff, 0
	case g.Reserves:
		return driver.HandoffMax, driver.HandoffTime
	}
	return 0, 0
}

// handoffLimits returns how often a lease of this grant may be handed off, and for how long after
// the grant. If the store can reserve tokens, each handoff needs one of the grant's tokens.
func (l *Locker) handoffLimits(g *driver.Grant) (n int32, within time.Duration) {
	if g.Limit != driver.Exclusive {
		return 0, 0
	}
	store := l.guarantees.Load()
	most, within := l.maxHandoffs(store)
	if store.Reserves {
		most = min(most, max(g.Tokens, 1)-1)
	}
	return int32(most), within
}

// reserveAgain is the number of requests that reserve tokens after goroutines of this Locker have
// competed for the name.
const reserveAgain = 8

// reserve makes a request reserve tokens for handoffs, if they are needed or goroutines of this Locker competed for
// the name lately.
func (l *Locker) reserve(r *driver.Request, needed bool) {
	g := l.guarantees.Load()
	n, _ := l.maxHandoffs(g)
	if n > 0 && g.Reserves && r.Limit == driver.Exclusive && (needed || l.localContention.expected(r.Name)) {
		r.Tokens = 1 + n
	}
}

// nextHolder returns the waiter that can have a lease in a handoff: the head of the
// local queue, if it requests just this lease. The Locker's mutex is held.
func (l *Locker) nextHolder(x *lease) *waiter {
	if l.queueCount.Load() == 0 || x.req.Limit != driver.Exclusive || l.closed {
		return nil
	}
	q := l.queues[x.req.Name]
	if q == nil || q.head == nil || !q.head.accepts(&x.req) || q.head.cancelled() {
		return nil
	}
	return q.head
}

// tokenOf returns the token of a holder: the next one of the grant, if it has reserved several.
func tokenOf(g *driver.Grant, handoffs int32) uint64 {
	if g.Tokens > 1 {
		return g.Token + uint64(handoffs) // mutation: handoff-token
	}
	return g.Token
}

// handOff gives the lease to a waiter. The returned function, if not nil, ends the queue's request, which no
// waiter needs any more. The Locker's mutex is held.
func (l *Locker) handOff(x *lease, w *waiter) context.CancelCauseFunc {
	x.holder = &holder{lease: x, set: w.set, ctx: w.ctx, token: tokenOf(&x.standing.grant, x.state.handoffs)}
	q := l.queues[x.req.Name]
	q.serve(w, x.holder)
	_, cancel := l.stepQueue(q, &queueEvent{kind: waiterLeft})
	return cancel
}
