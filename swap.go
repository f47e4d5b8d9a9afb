package holdfast

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// # A release and a request in one call
//
// A store that implements [driver.Swapper] releases a grant and makes the queue entry of
// the next local waiter in one atomic step. Then a lock that is unlocked while a goroutine
// waits behind it costs one write at the server and not two.
//
// After a grant the goroutine of the queue holds back the request for the next waiter,
// for at most driver.HandoffTime. If the grant is released within that time, Unlock offers
// the release to the goroutine of the queue, which sends both. Otherwise the request goes
// out alone, as on any other store. So a waiter of this process may queue up to
// HandoffTime later than it came; it overtakes no other waiter.
//
// Why the invariants of machine.go still hold:
//
//   - The offer is made by the release effect, and so after the contexts of all Locks on
//     the lease have ended. The lease is in phase releasing, so nothing renews it.
//   - The two halves are two leases of the state machine. The release reports released,
//     releaseDenied or releaseUnconfirmed to the old lease; the request reports granted,
//     denied or unanswered to the new one. No half decides about the other: a lost answer is
//     an unconfirmed release, which is repeated in the background, and an unanswered
//     request, which is undone.
//   - The release goes out exactly once in a first attempt. Swap either reports its outcome, or
//     returns without it; in the second case nothing of the release was applied, and
//     Unlock calls Release itself.
//   - Nothing cancels the request before the release has its outcome, so that a waiter
//     that gives up leaves no unconfirmed release. The request timeout limits both.
//   - The grant of the new lease has a new, larger token. Its entry goes to the tail of the
//     queue, so the order between processes stays.

// swap is a release that goes to the store together with the next request of the queue.
type swap struct {
	lease *lease // to be released
	once  sync.Once
	done  chan struct{} // closed when the release has its outcome
	// err is the store's answer if sent is set. If it is not, the release was not sent. Both are
	// written before done is closed.
	err  error
	sent bool
}

// answered records the store's answer to the release.
func (s *swap) answered(err error) {
	s.once.Do(func() {
		s.err, s.sent = err, true
		close(s.done)
	})
}

// withdraw ends a swap whose release was not sent. It changes nothing after answered.
func (s *swap) withdraw() {
	if s != nil {
		s.once.Do(func() { close(s.done) })
	}
}

// afterRelease delays a cancellation until the release has its outcome.
func (s *swap) afterRelease(cancel context.CancelCauseFunc) context.CancelCauseFunc {
	if s == nil {
		return cancel
	}
	return func(cause error) {
		select {
		case <-s.done:
			cancel(cause)
		default:
			go func() {
				<-s.done
				cancel(cause)
			}()
		}
	}
}

// canSwap reports whether the release of x can go with the next request of its queue: the
// head requests the same. A store in the layout of another client neither serves in order nor
// reserves tokens: it would grant the request before those of other processes. The Locker's mutex
// is held.
func (l *Locker) canSwap(q *queue, x *lease) bool {
	g := l.guarantees.Load()
	return !l.closed && q.head != nil && q.head.accepts(&x.req) && x.req.Limit == driver.Exclusive &&
		g.Wake == driver.WakePush && (g.Order == driver.OrderFIFO || g.Reserves)
}

// offer gives the release of x to the goroutine of its queue, if that holds the next request
// back for it. Otherwise it returns nil.
func (l *Locker) offer(x *lease) *swap {
	if l.swapper == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[x.req.Name]
	if q == nil || q.served != x {
		return nil
	}
	q.served, q.held, q.holders = nil, false, nil
	wakeup.Send(q.offered)
	if !l.canSwap(q, x) || q.head.cancelled() {
		return nil
	}
	q.swap = &swap{lease: x, done: make(chan struct{})}
	return q.swap
}

// asHolder returns the holder that other waiters see. The Locker's mutex is held.
func (x *lease) asHolder() []driver.Holder {
	g, c := &x.standing.grant, &x.l.cfg
	return []driver.Holder{{
		Owner: driver.Owner{ID: g.ID, Host: c.host, PID: pid, Instance: c.instance, Reason: x.holder.set.reason, Since: time.Now()},
		Token: g.Token, Tokens: g.Tokens, Limit: g.Limit, Slot: g.Slot, TTL: g.TTL,
	}}
}

// holdBack waits until the lease that was just delivered is being released, for at most
// driver.HandoffTime.
func (l *Locker) holdBack(q *queue) {
	l.mu.Lock()
	wait := q.served != nil
	l.mu.Unlock()
	if !wait {
		return
	}
	timer := time.NewTimer(driver.HandoffTime)
	defer timer.Stop()
	select {
	case <-q.offered:
	case <-timer.C:
	case <-l.ctx.Done():
	}
	l.mu.Lock()
	if q.served != nil {
		q.served, q.held, q.holders = nil, false, nil
	}
	l.mu.Unlock()
}

// takeSwap returns the release that was offered to the queue, if it can go with the request
// of the present head. The Locker's mutex is held.
func (l *Locker) takeSwap(q *queue) *swap {
	select {
	case <-q.offered:
	default:
	}
	s := q.swap
	q.swap = nil
	if s != nil && !l.canSwap(q, s.lease) {
		s.withdraw()
		return nil
	}
	return s
}

// releaseBySwap offers a release to the goroutine of the queue, and waits for the outcome. sent is
// false if the release has to go out by itself, within left.
func (l *Locker) releaseBySwap(x *lease, timeout time.Duration) (sent bool, left time.Duration, err error) {
	s := l.offer(x)
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
