package layouts

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// pending is one Acquire.
type pending struct {
	s         *store
	r         *driver.Request
	st        step
	lateUntil int64 // until when a call without an answer may arrive, by the server's clock; 0 if none can
	failures  int   // calls that have failed since the last answer
	notified  bool  // Queued was called
	interval  interval
	lead      time.Duration // by which the step's TTL is longer than the requested one
}

// Acquire requests a grant. See [driver.Store].
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := s.srv.BeginRequest(ctx, &r); err != nil {
		return driver.Grant{}, err
	}
	defer s.srv.Leave()
	if !s.rules.limits(r.Limit) {
		return driver.Grant{}, driver.Errorf(driver.CodeUnsupported, "redisstore: the layout %s has no locks of limit %d", s.layout, r.Limit)
	}
	if err := s.checkName(r.Name); err != nil {
		return driver.Grant{}, err
	}
	a := &pending{s: s, r: &r, lead: s.srv.Lead()}
	a.interval.backoff = backoff.Backoff{First: s.rules.poll / 16, Max: s.rules.poll}
	a.st = step{id: r.ID, own: s.owner(r.ID, r.Limit), ttl: server.TTL(r.TTL, a.lead), limit: r.Limit, key: s.key(r.Name)}
	g, err := a.run(ctx)
	if err != nil {
		s.srv.RecordLate(r.ID, err, a.lateUntil)
		return driver.Grant{}, server.WithdrawnIfEnded(ctx, err)
	}
	return g, nil
}

// run sends the request, and waits if the request may wait.
func (a *pending) run(ctx context.Context) (driver.Grant, error) {
	if paused := a.s.turns.pause(a.st.key) > 0; paused && a.r.First {
		return driver.Grant{}, &driver.BusyError{} // the caller queues
	} else if paused && a.r.Wait {
		return a.wait(ctx)
	}
	rep, err := a.call(ctx)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case rep.Kind == 'G':
		return a.granted(rep)
	case rep.Kind != 'B':
		return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.Kind, rep.Values)
	case a.r.Wait:
		return a.wait(ctx)
	}
	return driver.Grant{}, &driver.BusyError{Holders: a.s.holders(rep.Values[1:])}
}

// call runs the script once, and again if the estimate of the server's clock was wrong.
func (a *pending) call(ctx context.Context) (server.Reply, error) {
	s, st := a.s, &a.st
	for range 4 {
		if err := s.srv.RequireSafe(ctx); err != nil {
			return server.Reply{}, err
		}
		st.late, st.owner = s.srv.Clock.Deadline(), s.srv.EncodeOwner(a.r.From.Owner())
		st.least = s.srv.HighWater.Of(s.bucket(a.r.Name)).Load()
		st.verbArg = server.Digit(!a.r.First)
		rep, err := s.request(ctx, st)
		if err != nil {
			if driver.CodeOf(err) == driver.CodeUnknown {
				a.lateUntil = max(a.lateUntil, st.late)
			}
			return rep, err
		}
		switch rep.Kind {
		case 'L':
			continue
		case 'V':
			return rep, server.ErrUndone
		case 'G', 'B':
			if len(rep.Values) == 0 {
				return rep, driver.Errorf(driver.CodeUnknown, "the script %s returned no number", s.verbs.acquire.Name)
			}
			if rep.Kind == 'B' && !a.r.First && foreign(s.holders(rep.Values[1:])) {
				s.turns.blocked(st.key)
			}
		}
		return rep, nil
	}
	return server.Reply{}, driver.Errorf(driver.CodeUnavailable, "the server's clock advances too fast")
}

// request runs the acquire script. With WaitReplicas it waits for the replicas, and rolls back a grant that
// too few of them acknowledged.
func (s *store) request(ctx context.Context, st *step) (server.Reply, error) {
	c := s.call(st)
	if s.srv.Config.Replicas == 0 {
		return s.srv.Eval(ctx, s.verbs.acquire, c.Keys, c.Args)
	}
	return s.srv.EvalGrant(ctx, s.verbs.acquire, c.Keys, c.Args, func() error { return s.undo(ctx, st, 0) })
}

// foreign reports whether another client holds a name that is not free. A semaphore lists only the
// permits of holdfast.
func foreign(holders []driver.Holder) bool {
	return len(holders) == 0 || slices.ContainsFunc(holders, func(h driver.Holder) bool { return h.Note != "" })
}

// granted returns the grant of an answer "TOKEN", and registers it.
func (a *pending) granted(rep server.Reply) (driver.Grant, error) {
	s, r := a.s, a.r
	token, err := strconv.ParseUint(rep.Values[0], 10, 64)
	if err != nil {
		return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "a grant that cannot be parsed: %w", err)
	}
	s.turns.granted(a.st.key)
	h := &handle{own: a.st.own}
	h.LateUntil = a.lateUntil
	h.SetLead(a.lead)
	if s.layout != RedissonFenced {
		s.srv.HighWater.Raise(s.bucket(r.Name), token)
	}
	g := driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: token, SentAt: rep.Sent,
		TTL: time.Duration(millis(r.TTL)) * time.Millisecond, Slot: driver.NoSlot, Handle: h}
	s.srv.Held.Hold(&held.Grant{Grant: g, From: r.From})
	return g, nil
}

// wait repeats the request until it is granted.
func (a *pending) wait(ctx context.Context) (driver.Grant, error) {
	s := a.s
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.srv.Ctx, cancel)()
	a.st.queue = s.layout == RedissonFair
	channel := s.channel(a.st.key)
	if a.st.queue {
		channel += ":" + a.st.own
	}
	wake, leave := s.channels.listen(channel)
	defer leave()
	timer := time.NewTimer(server.SubscribeTimeout)
	defer timer.Stop()
	for {
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			return driver.Grant{}, a.leave(ctx, nil)
		}
		rep, err := a.callInTurn(ctx)
		switch {
		case err == nil && rep.Kind == 'G':
			return a.granted(rep)
		case ctx.Err() != nil:
			return driver.Grant{}, a.leave(ctx, nil)
		}
		delay, err := a.nextCall(ctx, rep, err)
		if err != nil {
			return driver.Grant{}, a.leave(context.Background(), err)
		}
		timer.Reset(delay)
	}
}

// callInTurn is call, after a pause in which other clients go first.
func (a *pending) callInTurn(ctx context.Context) (server.Reply, error) {
	// The core limits the time until the first answer to a third of the TTL, or less.
	if pause := min(a.s.turns.pause(a.st.key), a.r.TTL/8); pause > 0 {
		if err := backoff.Sleep(ctx, pause); err != nil {
			return server.Reply{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, a.s.srv.WaiterTimeout())
	defer cancel()
	return a.call(ctx)
}

// nextCall returns the delay until the next call, after the answer rep or the error err of the last
// one. It reports once that the request waits. It returns an error if the wait ends.
func (a *pending) nextCall(ctx context.Context, rep server.Reply, err error) (time.Duration, error) {
	if err == nil && rep.Kind == 'B' {
		a.failures = 0
		holders := a.s.holders(rep.Values[1:])
		if !a.notified {
			a.notified = true
			a.r.From.Queued(holders)
		}
		left, err := strconv.ParseInt(rep.Values[0], 10, 64)
		if err != nil {
			return 0, driver.Errorf(driver.CodeUnknown, "the script %s returned %q", a.s.verbs.acquire.Name, rep.Values)
		}
		delay := a.interval.next(ctx, left, holders)
		if left >= 0 {
			delay = min(delay, time.Duration(left+1)*time.Millisecond)
		}
		return delay, nil
	}
	if err == nil {
		err = driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.Kind, rep.Values)
	}
	if server.EndsWait(err) {
		return 0, err
	}
	a.failures++
	return server.RetryDelay(a.failures, fallbackInterval), nil
}

// leave withdraws the request, if the server may have an entry or a grant of it, and returns the error of the
// request: see Server.Withdraw.
func (a *pending) leave(ctx context.Context, why error) error {
	return a.s.srv.Withdraw(ctx, why, func(ctx context.Context) error {
		if !a.st.queue && a.lateUntil == 0 {
			return nil
		}
		return a.s.undo(ctx, &a.st, a.lateUntil)
	})
}
