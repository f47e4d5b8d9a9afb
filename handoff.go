package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// mayPassOn tells whether the grant may go to the next goroutine of this Locker
// instead of back to the store; left is the trust left. mu is held.
func (h *hold) mayPassOn(left time.Duration) bool {
	return h.passes < h.l.cfg.handoff && h.req.Limit == driver.Exclusive &&
		h.state == held && left > h.trust/2 && h.keep <= time.Since(h.since)
}

// passOn gives the grant to the goroutine at the head of the local queue, as a
// hold of its own. It reports false where nobody waits for just this, or the
// grant was lost: then it is the caller's to release.
func (h *hold) passOn() bool {
	l := h.l
	l.mu.Lock()
	q := l.queues[h.req.Name]
	if q == nil || q.head == nil || !q.head.sameRequest(h) || q.head.ctx.Err() != nil || l.closed {
		l.mu.Unlock()
		return false
	}
	w := q.head
	root := h.root
	if root == nil {
		root = h
	}
	heir := &hold{l: l, req: h.req, set: w.set, ctx: w.ctx, root: root, passes: h.passes + 1}

	h.mu.Lock()
	if h.state != held {
		h.mu.Unlock()
		l.mu.Unlock()
		return false
	}
	// From here on a loss is the heir's.
	h.state = released
	heir.state, heir.grant, heir.forever, heir.since = held, h.grant, h.forever, time.Now()
	heir.setTrust()
	root.heir.Store(heir)
	h.mu.Unlock()

	l.held.remove(h)
	l.held.push(heir)
	q.remove(w)
	if q.asking != nil && (q.head == nil || !q.head.sameRequest(q.asking)) {
		q.abandon(errAbandoned)
	}
	l.mu.Unlock()

	l.sched.remove(h)
	w.lock, _ = heir.newLock(w.ctx, &w.set)
	l.sched.add(heir)
	close(w.ready)
	h.report(EventReleased, nil, h.since)
	return true
}
