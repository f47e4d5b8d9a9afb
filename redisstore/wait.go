package redisstore

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

const (
	// near is the interval at which a waiter refreshes a queue entry near the head, as NEAR in
	// plain.lua. The script returns a longer interval for other entries. fallbackInterval is how long a lost message
	// delays a waiter, the round trip included.
	near             = 700 * time.Millisecond
	fallbackInterval = time.Second
)

// run sends the request, and waits if the request may wait.
func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	s, e := a.s, a.e
	sentAt := server.Micros()
	rep, err := a.call(ctx, 0)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case rep.Kind == 'G':
		return a.toGrant(rep)
	case rep.Kind == 'B':
		return driver.Grant{}, &driver.BusyError{Holders: s.holders(rep.Values, s.srv.Clock.Now())}
	case rep.Kind != 'Q' || !e.r.Wait:
		return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.Kind, rep.Values)
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
func (a *attempt) wait(ctx context.Context, rep server.Reply, sentAt int64) (driver.Grant, error) {
	s, e := a.s, a.e
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.srv.Ctx, cancel)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var err error // of the last call
	for {
		if err == nil && rep.Kind == 'G' {
			return a.toGrant(rep)
		}
		if ctx.Err() != nil {
			return driver.Grant{}, a.withdraw(ctx, nil)
		}
		var delay time.Duration
		if delay, err = a.nextRefresh(ctx, rep, sentAt, err); err != nil {
			return driver.Grant{}, a.withdraw(context.Background(), err)
		}
		a.sleep(ctx, timer, delay)
		if ctx.Err() != nil {
			rep = server.Reply{} // a failed call may have an answer, which is no grant
			continue
		}
		if g, ok := a.startUnconfirmed(); ok {
			return g, nil
		}
		call, done := context.WithTimeout(ctx, s.srv.WaiterTimeout())
		sentAt = server.Micros()
		rep, err = a.call(call, s.seqOf(e))
		done()
	}
}

// nextRefresh returns the delay until the next call, after the answer rep or the error err of the
// last call. It returns an error if the wait ends.
func (a *attempt) nextRefresh(ctx context.Context, rep server.Reply, sentAt int64, err error) (time.Duration, error) {
	switch {
	case err == nil && rep.Kind == 'Q':
		a.failures = 0
		a.tag, a.tagged, a.owner = a.lastTag, rep.Sent, a.lastOwner
		return a.queuedReply(ctx, rep, sentAt)
	case err == nil:
		// The queue entry is gone: the server has lost its data, or has removed the entry as dead.
		a.s.dequeue(a.e)
		a.tag = ""
		return 0, nil
	case server.EndsWait(err):
		return 0, err
	}
	a.failures++
	return server.Jitter(server.RetryDelay(a.failures, near)), nil
}

// sleep waits for the delay, for a message that wakes the waiter, or for the end of ctx. The delay
// becomes shorter when the entry comes near the head, or messages no longer arrive.
func (a *attempt) sleep(ctx context.Context, timer *time.Timer, delay time.Duration) {
	due := time.Now().Add(delay)
	timer.Reset(delay)
	for {
		select {
		case <-a.e.refreshSoon: // again and again while the client cannot subscribe
			if soon := time.Now().Add(wakeup.Fallback(ctx, near) - rand.N(near/5)); soon.Before(due) {
				due = soon
			}
			timer.Reset(time.Until(due))
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
func (a *attempt) queuedReply(ctx context.Context, rep server.Reply, sentAt int64) (time.Duration, error) {
	s, e := a.s, a.e
	var n [4]int64
	if len(rep.Values) < len(n) {
		return 0, driver.Errorf(driver.CodeUnknown, "a queue entry that cannot be parsed: %q", rep.Values)
	}
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(rep.Values[i], 10, 64); err != nil {
			return 0, driver.Errorf(driver.CodeUnknown, "a queue entry that cannot be parsed: %w", err)
		}
	}
	seq, ahead, refresh, expiry := n[0], n[1], time.Duration(n[2])*time.Millisecond, time.Duration(n[3])*time.Millisecond
	subscribed, missed := s.enqueue(e, seq, sentAt)
	if len(rep.Values) > len(n) {
		a.holders = s.holders(rep.Values[len(n):], s.srv.Clock.Now())
		if ahead == 0 {
			a.recall(rep.Values[len(n):])
		}
	}
	if !a.notified {
		if missed && !a.refreshed {
			// The waiter refreshes again before it reports that it is queued.
			a.refreshed = true
			return server.Jitter(server.SubscribeTimeout), nil
		}
		a.notified = true
		e.r.From.Queued(a.holders)
	}
	if !subscribed {
		refresh = min(refresh, near)
	}
	if ahead == 0 && expiry >= 0 && expiry < refresh {
		// The first holder may be dead. A refresh before its grant expires would be of no use.
		return wakeup.Fallback(ctx, expiry+time.Millisecond), nil
	}
	return server.Jitter(wakeup.Fallback(ctx, refresh)), nil
}

// enqueue records the queue entry of a request. subscribed reports whether messages arrive. missed reports that a
// message may have been lost, because the subscription began after the request was sent. The waiter
// then refreshes as soon as messages arrive. missed is false if the subscription failed.
func (s *store) enqueue(e *entry, seq, sentAt int64) (subscribed, missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq == 0 {
		e.wake, e.refreshSoon = make(chan struct{}, 1), make(chan struct{}, 1)
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

// dequeue removes the record of a queue entry, if there is one.
func (s *store) dequeue(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq != 0 {
		e.seq, e.woken, e.start = 0, false, ""
	}
}

// seqOf returns the number of the queue entry, 0 if there is none.
func (s *store) seqOf(e *entry) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.seq
}

// withdraw removes what the server has of the request, and returns the error of the request: see
// Server.Withdraw.
func (a *attempt) withdraw(ctx context.Context, why error) error {
	return a.s.srv.Withdraw(ctx, why, func(ctx context.Context) error {
		return a.s.undo(ctx, a.e.keys[0], a.e.r.ID, a.lateUntil)
	})
}
