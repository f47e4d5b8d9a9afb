package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// queue is the local queue of one name. However many goroutines wait in it, the
// Locker keeps one queue entry at the store: that of the goroutine at the head. The
// entry outlives the cancellation of its head, if the next waiter requests the same
// limit and TTL. Waiters are served in the order in which they came.
//
// A queue has one owner: it changes under the Locker's mutex only, and one goroutine
// (Locker.serveQueue) makes its requests, from the first waiter to the last. A waiter
// leaves it in exactly one way: served, failed, or by its own decision. Each
// removes the waiter and records the result in one step, so a cancellation and a
// delivery cannot both happen.
type queue struct {
	name       string
	head, tail *waiter
	// pending is the request under way, nil between two. cancel ends it.
	pending *lease
	cancel  context.CancelCauseFunc
	// held: the last answer of the store was that the name is held, by holders.
	held    bool
	holders []driver.Holder
	// served is the lease that was delivered last. It is set while the queue holds the next
	// request back until the release of that lease; held and holders then report that lease.
	// swap is that release, once Unlock has offered it. offered then wakes the queue's
	// goroutine.
	served  *lease
	swap    *swap
	offered chan struct{}
	// joined wakes the queue's goroutine, if it pauses, for a new waiter.
	joined chan struct{}
	// answered is when the store last answered a request of the queue.
	answered time.Time
}

// waiter is one goroutine in a queue.
type waiter struct {
	ctx        context.Context // the caller's
	done       <-chan struct{} // of the wait
	set        *settings
	joined     time.Time
	held       bool // the store has answered, since the waiter joined, that the name is held
	holders    []driver.Holder
	lastErr    error // of the last failed request made while it waited
	prev, next *waiter
	queued     bool // linked in the queue

	ready chan struct{} // closed when the waiter is served or failed
	// holder is set if the waiter was served, err if it failed. Written once, before ready is
	// closed.
	holder *holder
	err    error
}

// errAbandoned cancels a queue's request that no waiter needs now.
var errAbandoned = errors.New("no waiter needs this request any more")

// accepts reports whether a grant of r would serve w.
func (w *waiter) accepts(r *driver.Request) bool {
	return w.set.limit == r.Limit && w.set.ttl == r.TTL
}

// cancelled reports whether the wait of w has ended.
func (w *waiter) cancelled() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (q *queue) push(w *waiter) {
	w.queued = true
	w.prev = q.tail
	if q.tail != nil {
		q.tail.next = w
	} else {
		q.head = w
	}
	q.tail = w
}

func (q *queue) remove(w *waiter) {
	w.queued = false
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.tail = w.prev
	}
	w.prev, w.next = nil, nil
}

// serve removes a waiter that has got a lease, and wakes it.
func (q *queue) serve(w *waiter, h *holder) context.CancelCauseFunc {
	w.holder = h
	q.remove(w)
	close(w.ready)
	return q.unneeded()
}

// fail removes a waiter that cannot be served, and wakes it.
func (q *queue) fail(w *waiter, err error) {
	w.err = err
	q.remove(w)
	close(w.ready)
}

// unneeded returns the function that cancels the request under way, or nil if there is no
// request or it serves the head.
func (q *queue) unneeded() context.CancelCauseFunc {
	if q.pending == nil || q.head != nil && q.head.accepts(&q.pending.req) {
		return nil
	}
	return q.cancel
}

// answerTime returns the time that is left for the store to answer a waiter: a request timeout
// since the waiter came, or since the store has answered for an earlier waiter.
func (l *Locker) answerTime(q *queue, w *waiter) time.Duration {
	since := w.joined
	if q.answered.After(since) {
		since = q.answered
	}
	return time.Until(since.Add(l.requestTimeout(w.set.ttl)))
}

// await queues the caller and waits until it is served or has to leave.
func (l *Locker) await(a *acquisition) (*Lock, error) {
	w := &waiter{ctx: a.ctx, done: a.waiting.Done(), set: a.set, joined: time.Now(), ready: make(chan struct{})}
	q, err := l.enqueue(w, a.name, a.busy)
	if err != nil {
		return nil, err
	}
	var timer *time.Timer
	var fired <-chan time.Time
	for {
		next, ended := l.overdue(q, w, a.began)
		switch {
		case ended != nil:
			return nil, l.leave(q, w, ended)
		case next > 0 && timer == nil:
			timer = time.NewTimer(next)
			defer timer.Stop()
			fired = timer.C
		case next > 0:
			timer.Reset(next)
		}
		select {
		case <-w.ready:
			switch {
			case w.holder == nil:
				return nil, w.err
			case a.waiting.Err() != nil:
				return nil, l.leave(q, w, contextError(a.waiting)) // the caller has no use for the lock
			}
			return l.open(w), nil
		case <-w.done:
			return nil, l.leave(q, w, contextError(a.waiting))
		case <-fired:
		}
	}
}

// enqueue puts a waiter into the queue of its name, and starts the queue if it is
// the first. If the name is held, it reports to the hooks that the waiter is queued.
func (l *Locker) enqueue(w *waiter, name string, busy *BusyError) (*queue, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.closedError(name)
	}
	q := l.queues[name]
	if q == nil {
		q = &queue{name: name, joined: make(chan struct{}, 1), offered: make(chan struct{}, 1)}
		l.queues[name] = q
		l.queueCount.Add(1)
		l.background.run(func() { l.serveQueue(q) })
	}
	if busy != nil {
		w.held, w.holders = true, busy.Holders
	} else if q.held {
		w.held, w.holders = true, q.holders
	}
	q.push(w)
	wakeup.Send(q.joined)
	held, holders := w.held, w.holders
	l.mu.Unlock()
	if held && l.cfg.hooks != nil {
		returned := false
		defer func() {
			if !returned { // a hook has ended this goroutine
				_ = l.leave(q, w, errAbandoned)
			}
		}()
		l.emit(w.ctx, l.queuedEvent(w, holders, name))
		returned = true
	}
	return q, nil
}

// overdue returns the time until the next check of a waiter, or 0 for no further check. If the
// waiter has to leave now, it returns the reason. The request under way may be for another
// waiter, which has more time.
func (l *Locker) overdue(q *queue, w *waiter, began time.Duration) (next time.Duration, ended error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.queued {
		return 0, nil
	}
	if w.set.hasWait {
		if next = w.set.wait - (l.now() - began); next <= 0 {
			return 0, fmt.Errorf("%w (Wait(%s))", context.DeadlineExceeded, w.set.wait)
		}
	}
	if !w.held {
		answer := l.answerTime(q, w)
		if answer <= 0 {
			return 0, errNoAnswer
		}
		if next == 0 || answer < next {
			next = answer
		}
	}
	return next, nil
}

// open returns the Lock of a waiter that was served.
func (l *Locker) open(w *waiter) *Lock {
	k := newLock(w.holder, &w.holder.first, w.ctx, w.set)
	var o outcome
	l.mu.Lock()
	k.open(opened, w.set, &o)
	l.mu.Unlock()
	_ = l.perform(&o)
	return k
}

// leave takes a waiter out of its queue. If it was served at the same moment, its
// lease is given back in the background. leave returns the error of the wait.
func (l *Locker) leave(q *queue, w *waiter, ended error) error {
	var o outcome
	l.mu.Lock()
	if w.queued {
		q.remove(w)
		o.cancel = q.unneeded()
	} else if w.holder != nil {
		l.step(w.holder.lease, &event{kind: dropped}, &o)
	}
	l.mu.Unlock()
	_ = l.perform(&o)
	switch {
	case w.held:
		return &BusyError{Name: q.name, Store: l.where, Holders: w.holders, Err: ended}
	case ended == errNoAnswer:
		return &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: cmp.Or(w.lastErr, ended)}
	case w.lastErr != nil:
		return l.unanswered(q.name, ended, w.lastErr)
	case w.set.hasWait && errors.Is(ended, context.DeadlineExceeded):
		return &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: fmt.Errorf("no answer yet: %w", ended)}
	}
	return &failure{name: q.name, store: l.where, err: ended}
}

// noteQueued passes the store's answer on to every waiter of the queue.
func (l *Locker) noteQueued(x *lease, holders []driver.Holder) {
	q := x.queue
	var first []*waiter
	l.mu.Lock()
	if q.pending == x {
		first = l.noteHeld(q, holders)
	}
	l.mu.Unlock()
	l.reportQueued(q, first, holders)
}

// noteHeld records that the store has answered that the name is held. If there are hooks, it
// returns the waiters for which this is the first such answer. The Locker's mutex is held.
func (l *Locker) noteHeld(q *queue, holders []driver.Holder) (first []*waiter) {
	q.held, q.holders, q.answered = true, holders, time.Now()
	for w := q.head; w != nil; w = w.next {
		if !w.held && l.cfg.hooks != nil {
			first = append(first, w)
		}
		w.held, w.holders = true, holders
	}
	return first
}

// reportQueued reports to the hooks that waiters are queued.
func (l *Locker) reportQueued(q *queue, waiters []*waiter, holders []driver.Holder) {
	for _, w := range waiters {
		l.emitLater(w.ctx, l.queuedEvent(w, holders, q.name))
	}
}

func (l *Locker) queuedEvent(w *waiter, holders []driver.Holder, name string) Event {
	e := l.describe(EventQueued, name, w.set)
	e.Holders = holders
	return e
}
