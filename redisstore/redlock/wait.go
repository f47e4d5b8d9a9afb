package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

const (
	// queueTTL is how long a server keeps a queue that no waiter refreshes. It is
	// several times the interval at which each waiter repeats its request.
	queueTTL = 5 * time.Second
	// subscribeTimeout is how long a waiter waits until its client has subscribed at a quorum
	// of servers.
	subscribeTimeout = 2 * time.Second
	// gatherTimeout is how long a waiter that one server has notified waits for the messages of
	// the other servers.
	gatherTimeout = 2 * time.Millisecond
	// pollFirst and pollMax limit the interval at which a waiter repeats its request
	// while a client of another library holds the name. That client notifies no waiter.
	pollFirst, pollMax = 20 * time.Millisecond, 100 * time.Millisecond
)

// waiter receives the messages of the servers for one request.
type waiter struct{ woken chan struct{} }

// wait sends the request. If the name is held, it makes a queue entry, and waits until the request is
// granted, fails or is withdrawn.
func (c *candidate) wait(ctx context.Context) (driver.Grant, error) {
	s := c.s
	res, err := c.try(ctx, "")
	if err != nil || res.holders == nil {
		return res.grant, err
	}
	c.r.From.Queued(res.holders) // the servers have answered
	w := &waiter{woken: make(chan struct{}, len(s.nodes))}
	s.mu.Lock()
	s.waiters[c.r.ID] = w
	s.mu.Unlock()
	ended := func() {
		s.mu.Lock()
		delete(s.waiters, c.r.ID)
		s.mu.Unlock()
	}
	defer ended()
	s.listening.Do(s.listen)
	if err := s.awaitSubscriptions(ctx); err != nil {
		return driver.Grant{}, err
	}
	entry := c.r.ID + " " + s.channel
	g, err := c.waitInQueue(ctx, w, entry)
	ended() // before leave: a vote that is answered later removes the queue entry that it has made
	if err != nil && !c.leave(entry) {
		err = driver.Errorf(driver.CodeUnknown, "%w; the queue entry could not be removed", err)
	}
	return g, err
}

// waitInQueue sends the request with its queue entry, and repeats it after a message of the servers or a
// delay.
func (c *candidate) waitInQueue(ctx context.Context, w *waiter, entry string) (driver.Grant, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for polls := 0; ; polls++ {
		for len(w.woken) > 0 {
			<-w.woken
		}
		res, err := c.try(ctx, entry)
		code := driver.CodeOf(err)
		switch {
		case err == nil && res.holders == nil:
			return res.grant, nil
		case err == nil:
			failures = 0
			if res.queued >= c.s.quorum || polls > 0 {
				c.r.From.Queued(res.holders)
			}
		case ctx.Err() == nil && (code == driver.CodeUnavailable || code == driver.CodeUnknown):
			failures++
		default:
			return driver.Grant{}, err
		}
		timer.Reset(pollDelay(ctx, res, failures, min(fallbackInterval, driver.PositionTime(c.r.TTL)/2)))
		select {
		case <-timer.C:
		case <-w.woken:
			c.gather(ctx, w)
		case <-ctx.Done():
			return driver.Grant{}, withdrawn(ctx)
		}
	}
}

// pollDelay returns the time after which a waiter repeats its request without a message. res is the
// result of the last request, and failures is the number of requests that have failed since the last
// result. A lost message delays the waiter by at most the interval, in which it also renews its position.
func pollDelay(ctx context.Context, res result, failures int, interval time.Duration) time.Duration {
	if failures > 0 {
		return rand.N(min(fallbackInterval, 10*time.Millisecond<<min(failures, 7))) + time.Millisecond
	}
	delay := wakeup.Fallback(ctx, interval*3/4+rand.N(interval/4))
	if left := time.Until(res.free); left < delay {
		delay = min(delay, max(left, 0)+5*time.Millisecond+rand.N(20*time.Millisecond))
	}
	if res.foreign {
		delay = min(delay, pollFirst+rand.N(pollMax-pollFirst))
	}
	return delay
}

// gather waits until a quorum of servers has notified the waiter, or for gatherTimeout.
func (c *candidate) gather(ctx context.Context, w *waiter) {
	t := time.NewTimer(gatherTimeout)
	defer t.Stop()
	for n := 1; n < c.s.quorum; n++ {
		select {
		case <-w.woken:
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// leave removes the queue entry, and ends any vote for the request. If the lock is
// free, the servers notify the next waiter: their last message may have gone to this
// waiter, which no longer uses it. leave reports whether a quorum of servers has
// confirmed the removal.
func (c *candidate) leave(entry string) bool {
	return c.s.onAll(withdrawTimeout, func(n *node) error {
		key := c.s.prefix() + c.r.Name
		_, err := n.eval(withdrawTimeout, endScript, endKeys(key, c.r.ID), c.s.endArgs(c.r.ID+".", "0", "0", entry, true))
		return err
	}) == nil
}

// onAll makes a call at every server. It returns nil when a quorum has confirmed the
// call and the others have had a little more time. It returns an error if that takes
// longer than timeout, or if all have answered and fewer than a quorum confirmed the call.
func (s *store) onAll(timeout time.Duration, call func(*node) error) error {
	done := make(chan error, len(s.nodes))
	for _, n := range s.nodes {
		if !s.task(func() { done <- call(n) }) {
			return calls.ErrClosed
		}
	}
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	var grace <-chan time.Time
	var errs []error
	good := 0
	for range s.nodes {
		select {
		case err := <-done:
			if err != nil {
				errs = append(errs, err)
			} else if good++; good == s.quorum {
				grace = time.After(quorumGrace)
			}
		case <-grace:
			return nil
		case <-limit.C:
			return driver.Errorf(driver.CodeUnknown, "%d of %d servers have answered: %w", good, len(s.nodes), errors.Join(errs...))
		}
	}
	if good < s.quorum {
		return driver.Errorf(driver.CodeUnknown, "%d of %d servers have confirmed it: %w", good, len(s.nodes), errors.Join(errs...))
	}
	return nil
}

// listen subscribes to the client's channel at every server, until Close.
func (s *store) listen() {
	for _, n := range s.nodes {
		s.task(func() {
			server.KeepSubscribed(s.calls.Ctx, n.client.Subscribe, s.channel,
				func() { s.setSubscribed(n, true) }, s.receive, func() { s.setSubscribed(n, false) })
		})
	}
}

// setSubscribed records whether messages of a server arrive. When they begin to arrive,
// every waiter repeats its request, because earlier messages are lost.
func (s *store) setSubscribed(n *node, yes bool) {
	n.mu.Lock()
	n.subscribed = yes
	n.mu.Unlock()
	if !yes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.subscription)
	s.subscription = make(chan struct{})
	for _, w := range s.waiters {
		wakeup.Send(w.woken)
	}
}

// receive handles a message: the ID of a request that may be granted.
func (s *store) receive(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiters[id]; w != nil {
		wakeup.Send(w.woken)
	}
}

// awaitSubscriptions waits until the messages of a quorum of servers arrive, or for subscribeTimeout.
func (s *store) awaitSubscriptions(ctx context.Context) error {
	t := time.NewTimer(subscribeTimeout)
	defer t.Stop()
	for {
		s.mu.Lock()
		changed := s.subscription
		s.mu.Unlock()
		subscribed := 0
		for _, n := range s.nodes {
			n.mu.Lock()
			if n.subscribed {
				subscribed++
			}
			n.mu.Unlock()
		}
		if subscribed >= s.quorum {
			return nil
		}
		select {
		case <-changed:
		case <-t.C:
			return nil // the waiter repeats its request in any case
		case <-ctx.Done():
			return withdrawn(ctx)
		}
	}
}
