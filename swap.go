package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// # A release and a request in one call
//
// A store that implements [driver.Swapper] releases a grant and makes the queue entry of
// the next local waiter in one atomic step. Then a lock that is unlocked while a goroutine
// waits behind it, and that cannot be handed off to it any more, costs one write at the server and not two.
//
// After a grant the queue delays the request for the next waiter, for at most driver.HandoffTime. If the
// grant is released within that time, Unlock offers the release to the queue, whose goroutine sends both.
// Otherwise the request goes out alone, as on any other store. So a waiter of this process may queue up to
// HandoffTime later than it came; it overtakes no other waiter.
//
// Why the invariants of machine.go still hold:
//
//   - The offer is made by the release effect, and so after the contexts of all Locks on
//     the lease have ended. The lease is in phase releasing, so nothing renews it.
//   - The two halves are two leases of the state machine, and no half decides about the other: a lost answer
//     is an unconfirmed release, which is repeated in the background, and an unanswered request, which is undone.
//   - The release goes out exactly once in a first attempt. Swap either reports its outcome, or
//     returns without it; then nothing of the release was applied, and Unlock calls Release itself.
//   - Nothing cancels the request before the release has its outcome, so that a waiter
//     that gives up leaves no unconfirmed release. The request timeout limits both.
//   - The grant of the new lease has a new, larger token. Its entry goes to the tail of the
//     queue, so the order between processes stays.

// swap is a release that goes to the store together with the next request of the queue.
type swap struct {
	lease *lease // to be released
	queue *queue
	done  chan struct{} // closed when the release has its outcome
	// err is the store's answer if sent is set. If it is not, the release was not sent. Both are
	// written before done is closed.
	err  error
	sent bool
}

// answered records the store's answer to the release.
func (s *swap) answered(err error) { s.end(true, err) }

// end records the outcome of the release, or that it was not sent. Only the first call counts.
func (s *swap) end(sent bool, err error) {
	l, q := s.lease.l, s.queue
	var o outcome
	l.mu.Lock()
	if q.swap == s {
		s.sent, s.err = sent, err
		_, o.cancel = l.stepQueue(q, &queueEvent{kind: swapAnswered})
	}
	l.mu.Unlock()
	_ = l.perform(&o)
}

// canSwap reports whether the release of x can go with the request of w: it requests the
// same. A store that neither serves in order nor reserves tokens would grant the
// request before those of other processes. The Locker's mutex is held.
func (l *Locker) canSwap(x *lease, w *waiter) bool {
	if l.swapper == nil || l.closed || w == nil || !w.accepts(&x.req) || x.req.Limit != driver.Exclusive {
		return false
	}
	g := l.guarantees.Load()
	return g.Wake == driver.WakePush && (g.Order == driver.OrderFIFO || g.Reserves)
}

// asHolder returns the holder that other waiters see. The Locker's mutex is held.
func (x *lease) asHolder() []driver.Holder {
	g, c := &x.standing.grant, &x.l.cfg
	return []driver.Holder{{
		Owner: driver.Owner{ID: g.ID, Host: c.host, PID: pid, Instance: c.instance, Reason: x.holder.set.reason, Since: time.Now()},
		Token: g.Token, Tokens: g.Tokens, Limit: g.Limit, Slot: g.Slot, TTL: g.TTL,
	}}
}

// releaseBySwap gives the release of x to its queue, if that delays the next request for it, and waits for the
// outcome. sent is false if the release has to go out by itself, within left.
func (l *Locker) releaseBySwap(x *lease, timeout time.Duration) (sent bool, left time.Duration, err error) {
	if l.swapper == nil {
		return false, timeout, nil
	}
	var s *swap
	l.mu.Lock()
	if q := l.queues[x.req.Name]; q != nil && q.lease == x {
		if do, _ := l.stepQueue(q, &queueEvent{kind: releaseBegan}); do&offerSwap != 0 {
			s = q.swap
		}
	}
	l.mu.Unlock()
	if s == nil {
		return false, timeout, nil
	}
	began := l.now()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-s.done:
		return s.sent, max(timeout-(l.now()-began), time.Millisecond), s.err
	case <-timer.C:
		return true, 0, &driver.Error{Code: driver.CodeUnknown, Err: errNoAnswer}
	}
}
