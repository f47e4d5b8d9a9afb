package holdfast

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// serveQueue is the goroutine of a queue, from its first waiter to its last: it makes the
// requests of the head, and hands out the answers.
func (l *Locker) serveQueue(q *queue) {
	for {
		l.rest(q)
		x, ctx, cancel, s := l.nextRequest(q)
		if x == nil {
			return
		}
		g, err := l.requestQueued(ctx, x, cancel, s)
		if err == nil && g.Provisional {
			g = l.confirmForMargin(q, g)
		}
		if err == nil {
			l.deliver(q, x, g)
		} else {
			l.endRequest(q, x, err, context.Cause(ctx))
		}
		cancel(nil)
	}
}

// rest waits until the next request is due. A pause does not last longer than the store has time to
// answer any waiter.
func (l *Locker) rest(q *queue) {
	for {
		l.mu.Lock()
		left := time.Until(q.until)
		for w := q.head; w != nil && q.state.phase == pausing; w = w.next {
			if !w.held {
				left = min(left, l.answerTime(q, w))
			}
		}
		rests := q.state.phase == delaying || q.state.phase == pausing && q.head != nil
		l.mu.Unlock()
		if !rests {
			return
		}
		select {
		case <-q.wake:
		case <-time.After(max(left, time.Millisecond)):
			return
		}
	}
}

// nextRequest prepares the request of the head. It ends the queue if there is no head. The
// caller has to answer or withdraw the swap, if there is one.
func (l *Locker) nextRequest(q *queue) (x *lease, ctx context.Context, cancel context.CancelCauseFunc, s *swap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if do, _ := l.stepQueue(q, &queueEvent{kind: requestDue, err: l.closedError(q.name)}); do&request == 0 {
		return nil, nil, nil, nil
	}
	// The request belongs to the queue entry, not to the goroutine at the head: it
	// takes the values of the head's context, but not its end.
	ctx, cancel = context.WithCancelCause(context.WithoutCancel(q.head.ctx))
	x = l.newLease(ctx, q.name, q.head.set)
	x.queue = q
	l.reserve(&x.req, q.head.next != nil || q.head.set.sticky > 0)
	// A margin of the caller's may be longer than a provisional TTL.
	x.req.Provisional = x.req.Limit == driver.Exclusive && !q.head.set.hasMargin
	q.lease, q.cancel = x, cancel
	return x, ctx, cancel, q.swap
}

// requestQueued makes a request that waits, or polls a store that cannot notify. Until the
// first answer the request timeout limits it. The swap s may be nil.
func (l *Locker) requestQueued(ctx context.Context, x *lease, cancel context.CancelCauseFunc, s *swap) (driver.Grant, error) {
	if l.guarantees.Load().Wake == driver.WakePoll {
		return l.poll(ctx, x)
	}
	x.req.Wait = true
	timer := time.AfterFunc(l.requestTimeout(x.req.TTL), func() {
		if !x.answered.Load() {
			cancel(errNoAnswer)
		}
	})
	defer timer.Stop()
	if s != nil {
		defer s.end(false, nil)
		return l.swapper.Swap(ctx, s.lease.standing.grant, x.req, s.answered)
	}
	return l.store.Acquire(ctx, x.req)
}

// poll repeats a request that does not wait, after a pause.
func (l *Locker) poll(ctx context.Context, x *lease) (driver.Grant, error) {
	pause, began := backoff.Backoff{First: pollFirst, Max: pollMax}, l.now()
	for {
		var b requestContext
		g, err := l.store.Acquire(l.withTimeout(&b, ctx, false, l.requestTimeout(x.req.TTL)), x.req)
		b.end()
		if err == nil {
			return g, nil
		}
		busy, _ := errors.AsType[*driver.BusyError](err)
		if l.store.Classify(err) == driver.CodeBusy {
			x.Queued(holdersOf(err))
			next := pause.Next()
			if busy != nil && busy.Retry > 0 {
				next = min(next, busy.Retry)
			}
			if err = backoff.Sleep(ctx, next); err != nil {
				err = &driver.Error{Code: driver.CodeWithdrawn, Err: err}
			}
		}
		if err != nil {
			if x.req.Waited > 0 && l.guarantees.Load().Order == driver.OrderLongest &&
				(ctx.Err() != nil || l.store.Classify(err) == driver.CodeUnavailable) {
				err = &driver.Error{Code: driver.CodeUnknown, Err: err} // the store may have a position of the request
			}
			return driver.Grant{}, err
		}
		x.req.Waited = max(l.now()-began, 1)
	}
}

// confirmForMargin confirms a provisional grant if the head of the queue has a margin of its own,
// which may be longer than the provisional TTL. The request was sent for an earlier head without one.
func (l *Locker) confirmForMargin(q *queue, g driver.Grant) driver.Grant {
	l.mu.Lock()
	needed := q.head != nil && q.head.set.hasMargin
	l.mu.Unlock()
	if !needed {
		return g
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.requestTimeout(g.TTL))
	defer cancel()
	if a := l.store.Renew(ctx, []driver.Grant{g}); len(a) == 1 && a[0].Err == nil {
		g.SentAt, g.TTL, g.Provisional = a[0].SentAt, a[0].TTL, false
	}
	return g
}

// holdersOf returns the holders that a busy answer names.
func holdersOf(err error) []driver.Holder {
	if b, ok := errors.AsType[*driver.BusyError](err); ok {
		return b.Holders
	}
	return nil
}

// deliver gives a grant to the head of the queue, or back to the store if the head
// does not accept it.
func (l *Locker) deliver(q *queue, x *lease, g driver.Grant) {
	var o, unneeded outcome
	l.mu.Lock()
	if w := q.head; w != nil && w.accepts(&x.req) && !l.closed {
		x.holder.set, x.holder.ctx = w.set, w.ctx // the head may be another waiter than when the request was sent
	}
	l.grant(x, g, nil, &o)
	q.answered = time.Now()
	do, _ := l.stepQueue(q, &queueEvent{kind: requestGranted, usable: x.state.phase == held, err: errEndedBeforeAnswer})
	if do&giveBack != 0 {
		l.step(x, &event{kind: dropped}, &unneeded)
	}
	l.mu.Unlock()
	_ = l.perform(&o)
	_ = l.perform(&unneeded)
}

// endRequest handles a failed request. cause is why its context has ended, or nil.
func (l *Locker) endRequest(q *queue, x *lease, err, cause error) {
	e := queueEvent{kind: requestFailed, err: err, unanswered: cause == errNoAnswer}
	switch l.failed(x, err) {
	case driver.CodeRefused, driver.CodeUnsupported, driver.CodeInvalid:
		e.kind, e.err = requestRefused, l.explain(l.ctx, q.name, err)
	case driver.CodeClosed:
		e.kind, e.err = storeClosed, l.explain(l.ctx, q.name, err)
	case driver.CodeBusy: // the store could not queue the request just now
		e.kind, e.holders = requestBusy, holdersOf(err)
	default:
		e.err = cmp.Or(cause, err)
	}
	l.mu.Lock()
	l.stepQueue(q, &e)
	l.mu.Unlock()
}
