package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// queue is the local queue of one name. However many goroutines wait in it, the
// Locker keeps one place at the store: that of the goroutine at its head. The
// place outlives the cancelling of its head, as long as the next goroutine asks
// for the same limit and TTL; goroutines are served in the order in which they
// came. All fields are under the Locker's mutex.
type queue struct {
	name       string
	head, tail *waiter
	// asking is the request that the queue's goroutine has at the store, nil
	// between two; abandon ends it.
	asking  *hold
	abandon context.CancelCauseFunc
	// held: the last thing the store said was that the name is held, by holders.
	held    bool
	holders []driver.Holder
	// joined tells the queue's goroutine, if it pauses, of somebody new.
	joined chan struct{}
	// answered is when the store last answered a request of the queue.
	answered time.Time
}

// timeLeft is how long the store has to answer a goroutine: a request timeout since it
// came, or since the store has answered somebody else, who was served before.
func (l *Locker) timeLeft(q *queue, w *waiter) time.Duration {
	since := w.joined
	if q.answered.After(since) {
		since = q.answered
	}
	return time.Until(since.Add(l.requestTimeout(w.set.ttl)))
}

// waiter is one goroutine in a queue.
type waiter struct {
	ctx        context.Context
	set        settings
	joined     time.Time
	held       bool // the store has answered, since it came, that the name is held
	holders    []driver.Holder
	lastErr    error // of the last failed request made while it waited
	prev, next *waiter
	queued     bool // linked in

	ready chan struct{} // closed when lock or err is set
	lock  *Lock
	err   error
}

var errUseless = errors.New("the grant ended before its answer arrived")

var errAbandoned = errors.New("nobody waits for this any more")

func (w *waiter) sameRequest(h *hold) bool {
	return w.set.limit == h.req.Limit && w.set.ttl == h.req.TTL
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
	if !w.queued {
		return
	}
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

// await queues the caller and waits for its turn, until that time if the caller said
// how long to wait. The caller has entered.
func (l *Locker) await(ctx context.Context, name string, s settings, busy *BusyError, until time.Time) (*Lock, error) {
	w := &waiter{ctx: ctx, set: s, joined: time.Now(), ready: make(chan struct{})}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.closedError(name)
	}
	q := l.queues[name]
	if q == nil {
		q = &queue{name: name, joined: make(chan struct{}, 1)}
		l.queues[name] = q
		l.waiting.Add(1)
		l.work.run(func() { l.serve(q) })
	}
	if busy != nil {
		w.held, w.holders = true, busy.Holders
	} else if q.held {
		w.held, w.holders = true, q.holders
	}
	q.push(w)
	select {
	case q.joined <- struct{}{}:
	default:
	}
	known, holders := w.held, w.holders
	l.mu.Unlock()
	if known && l.cfg.hooks != nil {
		told := false
		defer func() {
			if !told { // a hook has ended this goroutine
				_ = l.quit(q, w, errAbandoned)
			}
		}()
		l.emit(ctx, l.queuedEvent(w, holders, name))
		told = true
	}

	var expired, unanswered <-chan time.Time
	var due *time.Timer
	if s.hasWait {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		expired = t.C
	}
	if !known {
		due = time.NewTimer(l.requestTimeout(s.ttl))
		defer due.Stop()
		unanswered = due.C
	}
	for {
		var ended error
		select {
		case <-w.ready:
			if w.lock == nil || ctx.Err() == nil {
				return w.lock, w.err
			}
			ended = contextError(ctx) // both at once: the lock would be of no use
		case <-ctx.Done():
			ended = contextError(ctx)
		case <-expired:
			ended = fmt.Errorf("%w (Wait(%s))", context.DeadlineExceeded, s.wait)
		case <-unanswered:
			// The request under way may be another's, who has more time.
			l.mu.Lock()
			waits, left := w.queued && !w.held, l.timeLeft(q, w)
			l.mu.Unlock()
			switch {
			case !waits:
				unanswered = nil
				continue
			case left > 0:
				due.Reset(left)
				continue
			}
			ended = errNoAnswer
		}
		return nil, l.quit(q, w, ended)
	}
}

// quit takes a waiter out of its queue whose waiting has ended.
func (l *Locker) quit(q *queue, w *waiter, ended error) error {
	l.mu.Lock()
	waiting := w.queued
	q.remove(w)
	// The place stays for the next goroutine if that asks for the same.
	if waiting && q.asking != nil && (q.head == nil || !q.head.sameRequest(q.asking)) {
		q.abandon(errAbandoned)
	}
	l.mu.Unlock()
	if !waiting {
		// Served at the same moment. The answer is on its way, and a grant among
		// it is given back in the background.
		l.work.run(func() {
			<-w.ready
			if w.lock != nil {
				w.lock.discard()
			}
		})
	}
	switch {
	case w.held:
		return &BusyError{Name: q.name, Store: l.where, Holders: w.holders, Err: ended}
	case ended == errNoAnswer:
		return &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: cmp.Or(w.lastErr, ended)}
	case w.lastErr != nil:
		return &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: fmt.Errorf("%w: %w", ended, w.lastErr)}
	case w.set.hasWait && errors.Is(ended, context.DeadlineExceeded):
		return &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: fmt.Errorf("no answer yet: %w", ended)}
	}
	return &failure{name: q.name, store: l.where, err: ended}
}

// reason is that of the goroutine at the head of the queue for which h asks, for
// the store to write down.
func (l *Locker) reason(h *hold) string {
	if h.q == nil {
		return h.set.reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.q.asking == h && h.q.head != nil {
		return h.q.head.set.reason
	}
	return h.set.reason
}

// noteQueued spreads the store's answer to everyone in the queue.
func (l *Locker) noteQueued(h *hold, holders []driver.Holder) {
	q := h.q
	var told []*waiter
	l.mu.Lock()
	if q.asking == h {
		q.held, q.holders, q.answered = true, holders, time.Now()
		for w := q.head; w != nil; w = w.next {
			if !w.held && l.cfg.hooks != nil {
				told = append(told, w)
			}
			w.held, w.holders = true, holders
		}
	}
	l.mu.Unlock()
	for _, w := range told {
		l.emitLater(w.ctx, l.queuedEvent(w, holders, q.name))
	}
}

// markHeld notes that the store has answered everyone in the queue.
func (l *Locker) markHeld(q *queue, holders []driver.Holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := q.head; w != nil; w = w.next {
		w.held, w.holders = true, holders
	}
}

func (l *Locker) queuedEvent(w *waiter, holders []driver.Holder, name string) Event {
	e := l.describe(EventQueued, name, &w.set)
	e.Holders = holders
	return e
}

// serve is the goroutine of a queue, from its first waiter to its last: it asks
// the store on behalf of the head and hands out what it gets.
func (l *Locker) serve(q *queue) {
	failures := 0
	for {
		h, ctx, end := l.nextRequest(q)
		if h == nil {
			return
		}
		g, err := l.ask(ctx, h)
		cause := context.Cause(ctx)
		end(nil)
		if err == nil {
			if l.deliver(q, h, g) {
				failures = 0
				continue
			}
			failures++
			l.failUnanswered(q, errUseless)
			failures = l.backOff(q, failures)
			continue
		}
		l.endRequest(q)
		code := l.store.Classify(err)
		if code == driver.Unknown {
			l.undoLater(h)
		}
		if cause != nil && cause != errNoAnswer {
			continue // abandoned: by its last waiter, or by Close
		}
		switch code {
		case driver.Refused, driver.Unsupported, driver.Invalid:
			// For whom it was asked: the head may be another by now.
			l.fail(q, l.explain(l.ctx, q.name, err), func(w *waiter) bool { return w == q.head && w.sameRequest(h) })
			continue
		case driver.Busy: // a store that could not queue it just now
			busy, _ := errors.AsType[*driver.BusyError](err)
			if busy == nil {
				busy = &driver.BusyError{}
			}
			l.markHeld(q, busy.Holders)
		case driver.IsClosed:
			l.fail(q, l.explain(l.ctx, q.name, err), func(*waiter) bool { return true })
			continue
		}
		if cause != nil {
			err = cause
		}
		if h.answered.Load() {
			failures = 0
		}
		failures++
		l.failUnanswered(q, err)
		failures = l.backOff(q, failures)
	}
}

// nextRequest prepares the head's request, or ends the queue when there is no
// head.
func (l *Locker) nextRequest(q *queue) (*hold, context.Context, context.CancelCauseFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		err := l.closedError(q.name)
		for w := q.head; w != nil; w = q.head {
			q.remove(w)
			w.err = err
			close(w.ready)
		}
	}
	if q.head == nil {
		delete(l.queues, q.name)
		l.waiting.Add(-1)
		return nil, nil, nil
	}
	// The request belongs to the place, not to the goroutine at its head: only
	// the values of its context go along.
	ctx, end := context.WithCancelCause(context.WithoutCancel(q.head.ctx))
	h := l.newHold(ctx, q.name, q.head.set)
	h.q = q
	q.asking, q.abandon = h, end
	return h, ctx, end
}

// ask makes one request that waits, on a store that pushes, or polls one that
// does not. Until the first answer it is bounded by the request timeout.
func (l *Locker) ask(ctx context.Context, h *hold) (driver.Grant, error) {
	stop := context.AfterFunc(l.ctx, func() { l.abandon(h, context.Cause(l.ctx)) })
	defer stop()
	if l.guarantees.Load().Wake == driver.WakePoll {
		return l.poll(ctx, h)
	}
	h.req.Wait = true
	timer := time.AfterFunc(l.requestTimeout(h.req.TTL), func() {
		if !h.answered.Load() {
			l.abandon(h, errNoAnswer)
		}
	})
	defer timer.Stop()
	return l.store.Acquire(ctx, h.req)
}

// abandon ends a queue's request if it is still being asked.
func (l *Locker) abandon(h *hold, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.q.asking == h {
		h.q.abandon(cause)
	}
}

// The pauses between two polls of a store that cannot notify, and between two
// requests that failed: they double from the first to the second, with jitter.
const (
	pollFirst, pollMost   = 5 * time.Millisecond, 500 * time.Millisecond
	retryFirst, retryMost = 20 * time.Millisecond, 2 * time.Second
)

func backoff(n int, first, most time.Duration) time.Duration {
	d := most
	if n < 16 {
		d = min(most, first<<n)
	}
	return d/2 + rand.N(d/2+1)
}

// poll asks again and again without queueing.
func (l *Locker) poll(ctx context.Context, h *hold) (driver.Grant, error) {
	for n := 0; ; n++ {
		var b bounded
		g, err := l.store.Acquire(l.bound(&b, ctx, false, l.requestTimeout(h.req.TTL)), h.req)
		b.end()
		if err == nil || l.store.Classify(err) != driver.Busy {
			return g, err
		}
		var holders []driver.Holder
		if b, ok := errors.AsType[*driver.BusyError](err); ok {
			holders = b.Holders
		}
		h.Queued(holders)
		t := time.NewTimer(backoff(n, pollFirst, pollMost))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return driver.Grant{}, &driver.Error{Code: driver.Withdrawn, Err: ctx.Err()}
		}
	}
}

// deliver hands a grant to the first goroutine that asked for what was granted.
// It reports false where the grant is of no use to anyone.
func (l *Locker) deliver(q *queue, h *hold, g driver.Grant) bool {
	l.mu.Lock()
	w := q.head
	if w != nil && !w.sameRequest(h) || l.closed {
		w = nil
	}
	if w != nil {
		h.set, h.ctx = w.set, w.ctx
	}
	q.asking, q.abandon, q.held, q.holders, q.answered = nil, nil, false, nil, time.Now()
	usable := h.accept(g)
	if usable && w != nil {
		q.remove(w)
		l.held.push(h)
	}
	l.mu.Unlock()
	switch {
	case !usable:
		l.undoLater(h)
	case w == nil:
		h.abandon()
	default:
		w.lock, _ = h.newLock(w.ctx, &w.set)
		l.sched.add(h)
		close(w.ready)
	}
	return usable
}

func (l *Locker) endRequest(q *queue) {
	l.mu.Lock()
	q.asking, q.abandon = nil, nil
	l.mu.Unlock()
}

// fail ends the waiting of those that match.
func (l *Locker) fail(q *queue, err error, match func(*waiter) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var failed []*waiter
	for w := q.head; w != nil; w = w.next {
		if match(w) {
			failed = append(failed, w)
		}
	}
	for _, w := range failed {
		q.remove(w)
		w.err = err
		close(w.ready)
	}
}

// failUnanswered gives up for those whom the store has not answered for the
// request timeout. Those who know that the name is held go on waiting.
func (l *Locker) failUnanswered(q *queue, err error) {
	l.mu.Lock()
	q.held, q.holders = false, nil
	for w := q.head; w != nil; w = w.next {
		w.lastErr = err
	}
	l.mu.Unlock()
	l.fail(q, &failure{name: q.name, store: l.where, kind: ErrUnavailable, err: err}, func(w *waiter) bool {
		return !w.held && l.timeLeft(q, w) <= 0
	})
}

// backOff pauses after a failed request, no longer than the first waiter can be
// kept without an answer. It answers how many failures count: for who comes meanwhile
// none do, or he would pay for the waiting of those before him with his own.
func (l *Locker) backOff(q *queue, failures int) int {
	end := time.Now().Add(backoff(failures-1, retryFirst, retryMost))
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		d := time.Until(end)
		l.mu.Lock()
		empty := q.head == nil
		for w := q.head; w != nil; w = w.next {
			if !w.held {
				d = min(d, l.timeLeft(q, w))
			}
		}
		l.mu.Unlock()
		if empty {
			return 0
		}
		t.Reset(max(d, time.Millisecond))
		select {
		case <-q.joined:
			if failures > 1 {
				failures = 1
				end = time.Now().Add(backoff(0, retryFirst, retryMost))
			}
		case <-t.C:
			return failures
		case <-l.ctx.Done():
			return failures
		}
	}
}
