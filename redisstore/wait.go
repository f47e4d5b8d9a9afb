package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/fallback"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

const (
	// near is the interval at which a waiter refreshes a queue entry near the head, as NEAR in
	// plain.lua. The script returns a longer interval for other entries. fallbackInterval is how long a lost message
	// delays a waiter, the round trip included.
	near             = 700 * time.Millisecond
	fallbackInterval = time.Second
	// callTimeout is the timeout of one call of a waiter, which then tries again. If replicas
	// have to acknowledge a grant, the timeout is at least theirs plus ackMargin.
	callTimeout = 2 * time.Second
	ackMargin   = time.Second
	// subscribeTimeout is how long the first waiter waits for its subscription before it reports
	// that it is queued.
	subscribeTimeout = 100 * time.Millisecond
	// withdrawTimeout is the timeout of a cancelled waiter that withdraws its queue entry.
	withdrawTimeout = 250 * time.Millisecond
)

// run sends the request, and waits if the request may wait.
func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	s, e := a.s, a.e
	sentAt := micros()
	rep, err := a.call(ctx, 0)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case rep.kind == 'G':
		return a.toGrant(rep)
	case rep.kind == 'B':
		return driver.Grant{}, &driver.BusyError{Holders: s.holders(rep.values, s.clock.now())}
	case rep.kind != 'Q' || !e.r.Wait:
		return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.kind, rep.values)
	}
	g, err := a.wait(ctx, rep, sentAt)
	s.dequeue(e)
	if err == nil {
		g.Handle.(*handle).counter = e.keys[1]
	}
	return g, err
}

// wait waits until the queue entry is granted. It refreshes the entry regularly, and each
// refresh returns the grant if there is one. A message causes an earlier refresh, or
// contains the grant. rep is the answer to the first call, which was sent at sentAt.
func (a *attempt) wait(ctx context.Context, rep reply, sentAt int64) (driver.Grant, error) {
	s, e := a.s, a.e
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var err error // of the last call
	for {
		if err == nil && rep.kind == 'G' {
			return a.toGrant(rep)
		}
		if g := s.passedTo(e); g != nil {
			return a.setLate(*g), nil
		}
		if ctx.Err() != nil {
			return driver.Grant{}, a.cancelled(ctx)
		}
		var delay time.Duration
		if delay, err = a.nextRefresh(ctx, rep, sentAt, err); err != nil {
			return driver.Grant{}, a.giveUp(err)
		}
		a.sleep(ctx, timer, delay)
		if ctx.Err() != nil || s.passedTo(e) != nil {
			rep = reply{} // a failed call may have an answer, which is no grant
			continue
		}
		if g, ok := a.startUnconfirmed(); ok {
			return g, nil
		}
		call, done := context.WithTimeout(ctx, s.waiterTimeout())
		sentAt = micros()
		rep, err = a.call(call, s.seqOf(e))
		done()
	}
}

// nextRefresh returns the delay until the next call, after the answer rep or the error err of the
// last call. It returns an error if the wait ends.
func (a *attempt) nextRefresh(ctx context.Context, rep reply, sentAt int64, err error) (time.Duration, error) {
	switch {
	case err == nil && rep.kind == 'Q':
		a.failures = 0
		a.tag, a.tagged, a.owner = a.lastTag, rep.sent, a.lastOwner
		return a.queuedReply(ctx, rep, sentAt)
	case err == nil:
		// The queue entry is gone: the server has lost its data, or has removed the entry as dead.
		a.s.dequeue(a.e)
		a.tag = ""
		return 0, nil
	case endsWait(err):
		return 0, err
	}
	a.failures++
	return jitter(retryDelay(a.failures, near)), nil
}

// endsWait reports whether the error of a call ends the wait of its request.
func endsWait(err error) bool {
	return !isTransient(err) ||
		errors.Is(err, errUndoFailed) || // the undo may still arrive, and would remove a later grant of this ID
		errors.Is(err, errUndone) // a new request with another ID may be granted
}

// retryDelay returns the delay after failed calls: 40 ms after the first one, doubled after each
// further one, at most limit.
func retryDelay(failures int, limit time.Duration) time.Duration {
	return min(limit, 20*time.Millisecond<<min(failures, 6))
}

// waiterTimeout returns the timeout of one call of a waiter.
func (s *Store) waiterTimeout() time.Duration {
	if s.cfg.replicas == 0 {
		return callTimeout
	}
	return max(callTimeout, s.cfg.ackTimeout+ackMargin)
}

// jitter shortens a delay by up to a fifth, so that the refreshes of many waiters are spread over
// time. It never exceeds the interval that the script has returned.
func jitter(delay time.Duration) time.Duration { return delay - rand.N(delay/5+1) }

// sleep waits for the delay, for a message that wakes the waiter, or for the end of ctx. The delay
// becomes shorter when the entry comes near the head, or messages no longer arrive.
func (a *attempt) sleep(ctx context.Context, timer *time.Timer, delay time.Duration) {
	timer.Reset(delay)
	for {
		select {
		case <-a.e.refreshSoon:
			timer.Reset(max(min(delay, fallback.After(ctx, near))-rand.N(near/5), 0))
		case <-a.e.wake:
			return
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// queuedReply records a queue entry, reports once that the request is queued, and returns the delay
// until the next refresh.
func (a *attempt) queuedReply(ctx context.Context, rep reply, sentAt int64) (time.Duration, error) {
	s, e := a.s, a.e
	var n [4]int64
	if len(rep.values) < len(n) {
		return 0, driver.Errorf(driver.CodeUnknown, "a queue entry that cannot be parsed: %q", rep.values)
	}
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(rep.values[i], 10, 64); err != nil {
			return 0, driver.Errorf(driver.CodeUnknown, "a queue entry that cannot be parsed: %w", err)
		}
	}
	seq, ahead, refresh, expiry := n[0], n[1], time.Duration(n[2])*time.Millisecond, time.Duration(n[3])*time.Millisecond
	subscribed, missed := s.enqueue(e, seq, sentAt)
	if len(rep.values) > len(n) {
		a.holders = s.holders(rep.values[len(n):], s.clock.now())
	}
	if !a.notified {
		if missed && !a.refreshed {
			// The waiter refreshes again before it reports that it is queued.
			a.refreshed = true
			return jitter(subscribeTimeout), nil
		}
		a.notified = true
		e.r.From.Queued(a.holders)
	}
	if !subscribed {
		refresh = min(refresh, near)
	}
	if ahead == 0 && expiry >= 0 && expiry < refresh {
		// The first holder may be dead. A refresh before its grant expires would be of no use.
		return fallback.After(ctx, expiry+time.Millisecond), nil
	}
	return jitter(fallback.After(ctx, refresh)), nil
}

// enqueue registers the queue entry of a request, so that messages wake it and a Release of this
// client can grant to it. subscribed reports whether messages arrive. missed reports that a
// message may have been lost, because the subscription began after the request was sent. The waiter
// then refreshes as soon as messages arrive. missed is false if the subscription failed.
func (s *Store) enqueue(e *entry, seq, sentAt int64) (subscribed, missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq == 0 {
		e.wake, e.refreshSoon = make(chan struct{}, 1), make(chan struct{}, 1)
		s.queued[e.r.Name] = append(s.queued[e.r.Name], e)
	}
	e.seq = seq
	subscribed = s.subscription.ready != 0
	missed = !subscribed || s.subscription.ready >= sentAt
	if e.woken || subscribed && missed {
		wakeup.Send(e.wake)
	}
	e.woken = false
	return subscribed, missed && !s.subscription.failed
}

// dequeue removes the registration of a queue entry, if there is one.
func (s *Store) dequeue(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq == 0 {
		return
	}
	e.seq, e.woken, e.start = 0, false, ""
	name := e.r.Name
	s.queued[name] = slices.DeleteFunc(s.queued[name], func(o *entry) bool { return o == e })
	if len(s.queued[name]) == 0 {
		delete(s.queued, name)
	}
}

// seqOf returns the number of the queue entry, 0 if there is none.
func (s *Store) seqOf(e *entry) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.seq
}

// passedTo returns the grant that a Release of this client has passed to the request, or nil.
func (s *Store) passedTo(e *entry) *driver.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.passed
}

// cancelled withdraws the queue entry, or a grant that the server made meanwhile. It returns the
// error of the request.
func (a *attempt) cancelled(ctx context.Context) error {
	cause := context.Cause(ctx)
	err := a.withdraw(ctx)
	switch {
	case err != nil:
		return driver.Errorf(driver.CodeUnknown, "%w; the queue entry could not be withdrawn: %w", cause, err)
	case a.s.ctx.Err() != nil:
		return errClosed
	}
	return driver.Errorf(driver.CodeWithdrawn, "%w", cause)
}

// giveUp withdraws the queue entry after an error that ends the wait.
func (a *attempt) giveUp(why error) error {
	if err := a.withdraw(context.Background()); err != nil {
		return driver.Errorf(driver.CodeUnknown, "%s; the queue entry could not be withdrawn: %w", why, err)
	}
	return why
}

// withdraw removes what the server has of the request. It also does so if ctx has ended.
func (a *attempt) withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_, err := a.s.eval(ctx, undoScript, a.e.keys[:1], []string{a.e.r.ID, strconv.FormatInt(a.lateUntil, 10)})
	return err
}
