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
	// near is the interval at which a waiter refreshes a queue entry near the head. The script
	// returns a longer interval for other entries. fallbackInterval is how long a lost message
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
	if err == nil {
		switch rep.kind {
		case 'G':
			return a.toGrant(rep)
		case 'B':
			return driver.Grant{}, &driver.BusyError{Holders: s.holders(rep.values, s.clock.now())}
		}
	}
	if err != nil || rep.kind != 'Q' || !e.r.Wait {
		if err == nil {
			err = driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.kind, rep.values)
		}
		return driver.Grant{}, err
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
// contains the grant.
func (a *attempt) wait(ctx context.Context, rep reply, sentAt int64) (driver.Grant, error) {
	s, e := a.s, a.e
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	limit := callTimeout
	if s.cfg.replicas > 0 {
		limit = max(limit, s.cfg.ackTimeout+ackMargin)
	}
	var err error
	failures := 0
	for {
		var delay time.Duration
		exact := false
		switch {
		case err == nil && rep.kind == 'G':
			return a.toGrant(rep)
		case s.passedTo(e) != nil:
			return a.markLate(*s.passedTo(e)), nil
		case ctx.Err() != nil:
			return driver.Grant{}, a.cancelled(ctx)
		case err == nil && rep.kind == 'Q':
			failures = 0
			a.tag, a.tagged, a.owner = a.lastTag, rep.sent, a.lastOwner
			if delay, exact, err = a.queuedReply(rep, sentAt); err != nil {
				return driver.Grant{}, a.giveUp(err)
			}
			if a.notified {
				delay = fallback.After(ctx, delay)
			}
		case err == nil:
			// The queue entry is gone: the server has lost its data, or has removed the entry
			// as dead.
			s.dequeue(e)
			a.tag, delay = "", 0
		default:
			switch driver.CodeOf(err) {
			case driver.CodeUnknown, driver.CodeUnavailable:
			default:
				return driver.Grant{}, a.giveUp(err)
			}
			if errors.Is(err, errUndoFailed) {
				// The undo may still arrive, and would remove a later grant of this ID.
				return driver.Grant{}, a.giveUp(err)
			}
			if errors.Is(err, errUndone) {
				return driver.Grant{}, a.giveUp(err) // a new request with another ID may be granted
			}
			failures++
			delay = min(near, 20*time.Millisecond<<min(failures, 6))
		}
		// Spread the refreshes of many waiters over time, but never exceed the script's interval.
		if !exact {
			delay -= rand.N(delay/5 + 1)
		}
		timer.Reset(delay)
		for again := false; !again; {
			select {
			case <-e.wake:
				again = true
			case <-e.close:
				timer.Reset(max(min(delay, fallback.After(ctx, near))-rand.N(near/5), 0))
			case <-timer.C:
				again = true
			case <-ctx.Done():
				again = true
			}
		}
		if ctx.Err() != nil || s.passedTo(e) != nil {
			rep, err = reply{}, nil
			continue
		}
		if g, ok := a.begin(); ok {
			return g, nil
		}
		call, done := context.WithTimeout(ctx, limit)
		sentAt = micros()
		rep, err = a.call(call, s.seqOf(e))
		done()
	}
}

// queuedReply records a queue entry and returns when to refresh it. exact means that the
// delay ends when the first grant expires, so that an earlier refresh is of no use.
func (a *attempt) queuedReply(rep reply, sentAt int64) (delay time.Duration, exact bool, err error) {
	s, e := a.s, a.e
	var n [4]int64
	for i := range n {
		if len(rep.values) < len(n) {
			return 0, false, driver.Errorf(driver.CodeUnknown, "a queue entry that cannot be parsed: %q", rep.values)
		}
		if n[i], err = strconv.ParseInt(rep.values[i], 10, 64); err != nil {
			return 0, false, driver.Errorf(driver.CodeUnknown, "a queue entry that cannot be parsed: %w", err)
		}
	}
	seq, ahead, refresh, expiry := n[0], n[1], time.Duration(n[2])*time.Millisecond, time.Duration(n[3])*time.Millisecond
	subscribed, missed := s.enqueue(e, seq, sentAt)
	if len(rep.values) > len(n) {
		a.holders = s.holders(rep.values[len(n):], s.clock.now())
	}
	if !a.notified && missed && !a.refreshed {
		// The waiter refreshes again before it reports that it is queued.
		a.refreshed = true
		return subscribeTimeout, false, nil
	}
	if !a.notified {
		a.notified = true
		e.r.From.Queued(a.holders)
	}
	if !subscribed {
		refresh = min(refresh, near)
	}
	if ahead == 0 && expiry >= 0 {
		// The first holder may be dead.
		exact = expiry < refresh
		refresh = min(refresh, expiry+time.Millisecond)
	}
	return refresh, exact, nil
}

// enqueue registers the queue entry of a request, so that messages wake it and a Release of this
// client can grant to it. subscribed reports whether messages arrive. missed reports that a
// message may have been lost, because the subscription began after the request was sent. The waiter
// then refreshes as soon as messages arrive. missed is false if the subscription failed.
func (s *Store) enqueue(e *entry, seq, sentAt int64) (subscribed, missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subs[e.channel]
	if e.seq == 0 {
		e.wake, e.close = make(chan struct{}, 1), make(chan struct{}, 1)
		s.queued[e.r.Name] = append(s.queued[e.r.Name], e)
	}
	e.seq = seq
	subscribed = sub != nil && sub.ready != 0
	missed = !subscribed || sub.ready >= sentAt
	if e.woken || subscribed && missed {
		wakeup.Send(e.wake)
	}
	e.woken = false
	return subscribed, missed && !(sub != nil && sub.failed)
}

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

func (s *Store) seqOf(e *entry) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.seq
}

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

func (a *attempt) withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	lateUntil := int64(0)
	if a.unanswered {
		lateUntil = a.lateUntil
	}
	_, err := a.s.eval(ctx, undoScript, a.e.keys[:1], []string{a.e.r.ID, strconv.FormatInt(lateUntil, 10)})
	return err
}
