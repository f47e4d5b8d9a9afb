package holdfast

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
)

// nextHolder returns the waiter that can have a lease in a handoff: the head of the
// local queue, if it asks for just this lease. The Locker's mutex is held.
func (l *Locker) nextHolder(x *lease) *waiter {
	if l.cfg.handoff <= int(x.state.handoffs) || x.req.Limit != driver.Exclusive || l.closed {
		return nil
	}
	q := l.queues[x.req.Name]
	if q == nil || q.head == nil || !q.head.asksFor(&x.req) || q.head.cancelled() {
		return nil
	}
	return q.head
}

// handOff gives the lease to a waiter, with the token that it has. The returned
// function, if not nil, ends the queue's request, which no waiter needs any more.
// The Locker's mutex is held.
func (l *Locker) handOff(x *lease, w *waiter) context.CancelCauseFunc {
	x.holder = &holder{lease: x, set: w.set, ctx: w.ctx, token: x.holder.token}
	return l.queues[x.req.Name].serve(w, x.holder)
}
