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
// A queue changes under the Locker's mutex only, by the events of queue_machine.go. One goroutine
// (Locker.serveQueue) makes its requests, from the first waiter to the last.
type queue struct {
	name       string
	state      queueState
	head, tail *waiter
	// lease is that of the request under way, or else of the last one. cancel ends the request.
	lease  *lease
	cancel context.CancelCauseFunc
	// swap is the release that is offered, or that goes with the request under way.
	swap *swap
	// holders are the holders of the name when it was last found held.
	holders []driver.Holder
	// delayed is the error of the request that waits in this process, as it was last found, else nil.
	delayed error
	// answered is when the store last answered a request of the queue.
	answered time.Time
	// until is when a delay or a pause is over. wake ends it earlier. retry counts the pauses.
	until time.Time
	wake  chan struct{}
	retry retry
}

// waiter is one goroutine in a queue.
type waiter struct {
	ctx        context.Context // the caller's
	done       <-chan struct{} // of the wait
	set        *settings
	joined     time.Time
	held       bool // the store has answered, since the waiter joined, that the name is held
	holders    []driver.Holder
	delayed    error // of the queue, when held was set
	lastErr    error // of the last failed request made while it waited, if the store has not answered since
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
	return w.set.limit == r.Limit && w.set.ttl == r.TTL // mutation: accepts
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
func (q *queue) serve(w *waiter, h *holder) {
	w.holder = h
	q.remove(w)
	close(w.ready)
}

// fail removes the waiters that match and cannot be served, and wakes them.
func (q *queue) fail(err error, match func(*waiter) bool) {
	var next *waiter
	for w := q.head; w != nil; w = next {
		if next = w.next; match(w) {
			w.err = err
			q.remove(w)
			close(w.ready)
		}
	}
}

// queueEvent is a queueEventKind with its values.
type queueEvent struct {
	kind   queueEventKind
	usable bool // requestGranted; see queueFacts
	// unanswered is for a failed request; see queueFacts.
	unanswered bool
	holders    []driver.Holder // storeAnswered, requestBusy
	delayed    error           // storeAnswered: see driver.Delayer
	err        error           // of a failed request
}

// observeQueue collects the facts for an event.
func (l *Locker) observeQueue(q *queue, e *queueEvent) queueFacts {
	f := queueFacts{waits: q.head != nil, usable: e.usable, unanswered: e.unanswered, closed: l.closed}
	if q.lease == nil {
		return f
	}
	f.fits = f.waits && q.head.accepts(&q.lease.req)
	f.answered = q.lease.answered.Load()
	switch e.kind {
	case requestGranted:
		f.swaps = f.waits && l.canSwap(q.lease, q.head.next)
	case releaseBegan:
		f.swaps = l.canSwap(q.lease, q.head) && !q.head.cancelled()
	case requestDue:
		f.swaps = q.swap != nil && l.canSwap(q.lease, q.head)
	}
	return f
}

// stepQueue applies an event to a queue, and carries out the effects on the waiters. The others are the
// caller's. cancel, if not nil, ends the request under way. The Locker's mutex is held.
func (l *Locker) stepQueue(q *queue, e *queueEvent) (do queueEffect, cancel context.CancelCauseFunc) {
	f := l.observeQueue(q, e)
	delayed := q.delayed != nil
	q.state, do = q.state.next(e.kind, f)
	if do&noteAll != 0 {
		l.noteHeld(q, e.holders, e.delayed)
	}
	if do&serveHead != 0 {
		q.serve(q.head, q.lease.holder)
	}
	if do&(failHead|failAll) != 0 {
		head := q.head
		q.fail(e.err, func(w *waiter) bool { return w == head || do&failAll != 0 })
	}
	if do&failUnanswered != 0 {
		for w := q.head; w != nil && do&noteAll == 0; w = w.next {
			w.lastErr = e.err
		}
		q.fail(&failure{name: q.name, store: l.where, kind: ErrUnavailable, err: e.err},
			func(w *waiter) bool { return !w.held && l.answerTime(q, w) <= 0 })
	}
	if do&delay != 0 {
		l.noteHeld(q, q.lease.asHolder(), nil)
		q.until = time.Now().Add(driver.HandoffTime)
	}
	if do&pause != 0 {
		if q.state.failures == 1 {
			q.retry = retry{}
		}
		q.until = time.Now().Add(q.retry.delay())
	}
	if do&returnSwap != 0 {
		close(q.swap.done)
		q.swap = nil
	}
	if do&offerSwap != 0 {
		q.swap = &swap{lease: q.lease, queue: q, done: make(chan struct{})}
	}
	if do&wake != 0 {
		wakeup.Send(q.wake)
	}
	if do&finish != 0 {
		delete(l.queues, q.name)
		l.queueCount.Add(-1)
		q.delayed = nil
	}
	if !q.state.busy() {
		q.holders, q.delayed = nil, nil
	}
	switch {
	case q.delayed != nil && !delayed:
		l.delayed++
	case q.delayed == nil && delayed:
		l.delayed--
	}
	if do&cancelRequest != 0 {
		cancel = q.cancel
	}
	return do, cancel
}

// noteHeld records that the name is held, or that its request is delayed. It reports that to the hooks for waiters
// without an earlier answer.
func (l *Locker) noteHeld(q *queue, holders []driver.Holder, delayed error) {
	q.holders, q.delayed, q.answered = holders, delayed, time.Now()
	for w := q.head; w != nil; w = w.next {
		first := !w.held
		w.held, w.holders, w.delayed, w.lastErr = true, holders, delayed, nil
		if first && l.cfg.hooks != nil {
			l.emitLater(w.ctx, l.queuedEvent(w, q.name))
		}
	}
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
	switch {
	case err != nil:
		return nil, err
	case q == nil:
		return a.open(w.holder)
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
// the first. If the name is held, it reports to the hooks that the waiter is queued. It returns no queue
// if the waiter has got a lease that is kept since the waiter looked for one.
func (l *Locker) enqueue(w *waiter, name string, busy *BusyError) (*queue, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.closedError(name)
	}
	var unfit outcome
	if len(l.kept) > 0 {
		if w.holder = l.takeKept(w.ctx, name, w.set, &unfit); w.holder != nil {
			l.mu.Unlock()
			return nil, l.perform(&unfit)
		}
	}
	q := l.queues[name]
	if q == nil {
		q = &queue{name: name, wake: make(chan struct{}, 1)}
		l.queues[name] = q
		l.queueCount.Add(1)
		l.background.run(func() { l.serveQueue(q) })
	}
	w.held, w.holders, w.delayed = q.state.busy(), q.holders, q.delayed
	if busy != nil {
		w.held, w.holders = true, busy.Holders
	}
	q.push(w)
	for _, wanted := range l.wanted[name] {
		wanted.close()
	}
	l.stepQueue(q, &queueEvent{kind: waiterJoined})
	held := w.held && l.cfg.hooks != nil
	var e Event
	if held {
		e = l.queuedEvent(w, name)
	}
	l.mu.Unlock()
	if unfit.do != 0 {
		l.performLater(unfit)
	}
	if held {
		returned := false
		defer func() {
			if !returned { // a hook has ended this goroutine
				_ = l.leave(q, w, errAbandoned)
			}
		}()
		l.emit(w.ctx, e)
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
	k.open(opened, w.set)
	return k
}

// leave takes a waiter out of its queue. If it was served at the same moment, its
// lease is given back in the background. leave returns the error of the wait.
func (l *Locker) leave(q *queue, w *waiter, ended error) error {
	var o outcome
	l.mu.Lock()
	if w.queued {
		q.remove(w)
		_, o.cancel = l.stepQueue(q, &queueEvent{kind: waiterLeft})
	} else if w.holder != nil {
		l.step(w.holder.lease, &event{kind: dropped}, &o)
	}
	l.mu.Unlock()
	_ = l.perform(&o)
	switch {
	case w.delayed != nil:
		return l.unanswered(q.name, ended, w.delayed)
	case w.held:
		if w.lastErr != nil { // only the text has it: the wait has not ended because of it
			ended = fmt.Errorf("%w, while the store failed: %v", ended, w.lastErr)
		}
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

func (l *Locker) queuedEvent(w *waiter, name string) Event {
	e := l.describe(EventQueued, name, w.set)
	e.Holders, e.Err = w.holders, w.delayed
	return e
}
