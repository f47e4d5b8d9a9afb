package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// serveQueue is the goroutine of a queue, from its first waiter to its last: it makes the
// requests of the head, and hands out the answers.
func (l *Locker) serveQueue(q *queue) {
	var r retry
	for {
		x, ctx, cancel, s := l.nextRequest(q)
		if x == nil {
			return
		}
		g, err := l.requestQueued(ctx, x, cancel, s)
		if err == nil && g.Provisional {
			g = l.confirmForMargin(q, g)
		}
		cause := context.Cause(ctx)
		cancel(nil)
		if err != nil {
			err = l.endRequest(q, x, err, cause, &r)
		} else if l.deliver(q, x, g) {
			r.reset()
			l.holdBack(q)
		} else {
			err = errEndedBeforeAnswer
		}
		if err != nil {
			l.giveUpUnanswered(q, err)
			l.pause(q, &r)
		}
	}
}

// nextRequest prepares the request of the head. It ends the queue if there is no head. The
// caller has to answer or withdraw the swap, if there is one.
func (l *Locker) nextRequest(q *queue) (*lease, context.Context, context.CancelCauseFunc, *swap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.takeSwap(q)
	if l.closed {
		err := l.closedError(q.name)
		for q.head != nil {
			q.fail(q.head, err)
		}
	}
	if q.head == nil {
		delete(l.queues, q.name)
		l.queueCount.Add(-1)
		return nil, nil, nil, nil
	}
	// The request belongs to the queue entry, not to the goroutine at the head: it
	// takes the values of the head's context, but not its end.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(q.head.ctx))
	x := l.newLease(ctx, q.name, q.head.set)
	x.queue = q
	l.reserve(&x.req, q.head.next != nil)
	// A margin of the caller's may be longer than a provisional TTL.
	x.req.Provisional = x.req.Limit == driver.Exclusive && !q.head.set.hasMargin
	q.pending, q.cancel = x, s.afterRelease(cancel)
	return x, ctx, cancel, s
}

// requestQueued makes a request that waits, or polls a store that cannot notify. Until the
// first answer the request timeout limits it. The swap s may be nil.
func (l *Locker) requestQueued(ctx context.Context, x *lease, cancel context.CancelCauseFunc, s *swap) (driver.Grant, error) {
	defer s.withdraw()
	end := s.afterRelease(cancel)
	stop := context.AfterFunc(l.ctx, func() { end(context.Cause(l.ctx)) })
	defer stop()
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
		return l.swapper.Swap(ctx, s.lease.standing.grant, x.req, s.answered)
	}
	return l.store.Acquire(ctx, x.req)
}

// poll repeats a request that does not wait, after a pause that a notification of the
// store ends.
func (l *Locker) poll(ctx context.Context, x *lease) (driver.Grant, error) {
	listening, stop := context.WithCancel(ctx)
	defer stop()
	var freed chan struct{}
	pause := backoff.Backoff{First: pollFirst, Max: pollMax}
	for {
		var b requestContext
		g, err := l.store.Acquire(l.withTimeout(&b, ctx, false, l.requestTimeout(x.req.TTL)), x.req)
		b.end()
		if err == nil || l.store.Classify(err) != driver.CodeBusy {
			return g, err
		}
		x.Queued(holdersOf(err))
		if notifier, ok := l.store.(driver.Notifier); ok && freed == nil {
			freed = make(chan struct{}, 1)
			notifier.Notify(listening, x.req.Name, func() { wakeup.Send(freed) })
		}
		t := time.NewTimer(pause.Next())
		select {
		case <-t.C:
		case <-freed:
			t.Stop()
			pause.Reset()
		case <-ctx.Done():
			t.Stop()
			return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()}
		}
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
// does not accept it. It reports false if no waiter can use the grant.
func (l *Locker) deliver(q *queue, x *lease, g driver.Grant) (usable bool) {
	var o, unneeded outcome
	var queued []*waiter
	var holders []driver.Holder
	l.mu.Lock()
	w := q.head
	if w != nil && !w.accepts(&x.req) || l.closed {
		w = nil
	}
	if w != nil { // the head may be another waiter than when the request was sent
		x.holder.set, x.holder.ctx = w.set, w.ctx
	}
	q.pending, q.cancel, q.held, q.holders, q.answered = nil, nil, false, nil, time.Now()
	x.standing.grant = g // mutation: served
	l.step(x, &event{kind: granted}, &o)
	usable = x.state.phase == held
	switch {
	case usable && w != nil:
		q.serve(w, x.holder)
		if l.swapper != nil && l.canSwap(q, x) {
			// The store has answered for the waiters behind, too: this lease holds the name.
			q.served, holders = x, x.asHolder()
			queued = l.noteHeld(q, holders)
		}
	case usable:
		l.step(x, &event{kind: dropped}, &unneeded)
	}
	l.mu.Unlock()
	_ = l.perform(&o)
	_ = l.perform(&unneeded)
	l.reportQueued(q, queued, holders)
	return usable
}

// endRequest handles a failed request. It returns the error if the queue repeats the request
// after a pause, and nil if the next request follows at once.
func (l *Locker) endRequest(q *queue, x *lease, err, cause error, r *retry) error {
	l.mu.Lock()
	q.pending, q.cancel = nil, nil
	l.mu.Unlock()
	code := l.failed(x, err)
	if cause != nil && cause != errNoAnswer {
		return nil // cancelled by its last waiter, or by Close
	}
	switch code {
	case driver.CodeRefused, driver.CodeUnsupported, driver.CodeInvalid:
		// The error concerns the waiter for which the request was made. Another waiter may be
		// the head by now.
		l.failAll(q, l.explain(l.ctx, q.name, err), func(w *waiter) bool { return w == q.head && w.accepts(&x.req) })
		return nil
	case driver.CodeClosed:
		l.failAll(q, l.explain(l.ctx, q.name, err), func(*waiter) bool { return true })
		return nil
	case driver.CodeBusy: // the store could not queue the request just now
		l.markHeld(q, holdersOf(err))
	}
	if x.answered.Load() {
		r.reset()
	}
	if cause != nil {
		return cause
	}
	return err
}

// markHeld records that the store has answered every waiter of the queue.
func (l *Locker) markHeld(q *queue, holders []driver.Holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := q.head; w != nil; w = w.next {
		w.held, w.holders = true, holders
	}
}

// failAll fails the waiters that match. match is called under the Locker's mutex.
func (l *Locker) failAll(q *queue, err error, match func(*waiter) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var matching []*waiter
	for w := q.head; w != nil; w = w.next {
		if match(w) {
			matching = append(matching, w)
		}
	}
	for _, w := range matching {
		q.fail(w, err)
	}
}

// giveUpUnanswered fails the waiters that the store has not answered for the request
// timeout. A waiter continues to wait if the store has reported that the name is held.
func (l *Locker) giveUpUnanswered(q *queue, err error) {
	l.mu.Lock()
	q.held, q.holders = false, nil
	for w := q.head; w != nil; w = w.next {
		w.lastErr = err
	}
	l.mu.Unlock()
	l.failAll(q, &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: err}, func(w *waiter) bool {
		return !w.held && l.answerTime(q, w) <= 0
	})
}

// pause waits after a failed request, but not longer than the store has time to answer any
// waiter. The failure count restarts when a new waiter joins, so that it does not inherit a
// long backoff.
func (l *Locker) pause(q *queue, r *retry) {
	end := time.Now().Add(r.delay())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		left := time.Until(end)
		l.mu.Lock()
		empty := q.head == nil
		for w := q.head; w != nil; w = w.next {
			if !w.held {
				left = min(left, l.answerTime(q, w))
			}
		}
		l.mu.Unlock()
		if empty {
			r.reset()
			return
		}
		timer.Reset(max(left, time.Millisecond))
		select {
		case <-q.joined:
			if r.failures > 1 {
				r.reset()
				end = time.Now().Add(r.delay())
			}
		case <-timer.C:
			return
		case <-l.ctx.Done():
			return
		}
	}
}
