package sqlkit

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Sweep does nothing: there are no rows to remove.
func (*Sessions) Sweep(context.Context, time.Duration) error { return nil }

// Undo closes the session of a request, and waits until the server has ended it.
func (e *Sessions) Undo(ctx context.Context, r driver.Request) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.tasks.Done()
	e.mu.Lock()
	l := e.leases[r.ID]
	e.mu.Unlock()
	if l == nil {
		return nil // the request has no session
	}
	return e.closedOrNil(e.finish(ctx, l))
}

func (e *Sessions) closedOrNil(err error) error {
	if err == nil {
		return nil
	}
	return e.closedOr(err)
}

// finish closes a session and waits until the server has ended it. Its grant is over in any
// case.
func (e *Sessions) finish(ctx context.Context, l *lease) error {
	ctx, end := e.bound(ctx)
	defer end()
	e.mu.Lock()
	l.granted, l.over, l.given = false, true, true
	e.mu.Unlock()
	l.end()
	e.drop(l.s)
	for wait := (backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}); ; {
		gone := false
		err := e.aside(ctx, func(side Link) (err error) {
			gone, err = e.recipe.End(ctx, side, l.s.ID)
			return err
		})
		if err != nil {
			coded, _ := e.recipe.Sort(err)
			if code := driver.CodeOf(coded); code == driver.CodeRefused || code == driver.CodeUnavailable {
				return driver.Errorf(driver.CodeUnknown, "the end of the session cannot be confirmed: %w", err)
			}
			return coded
		}
		if gone {
			e.forget(l)
			return nil
		}
		if err := wait.Sleep(ctx); err != nil {
			return driver.Errorf(driver.CodeUnknown, "the server still has session %d: %w", l.s.ID.Conn, err)
		}
	}
}

// Release ends a grant on its own session, or together with the session if that cannot be
// used.
func (e *Sessions) Release(ctx context.Context, g driver.Grant, _ time.Duration) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.tasks.Done()
	return e.release(ctx, g, func(l *lease) (bool, error) { return e.recipe.Unlock(ctx, l.s, &l.request) }, func(l *lease) {
		e.forget(l)
		e.put(l.s)
	})
}

// release ends a grant by unlock, which reports whether the session had the grant, and then calls
// done. The caller has called enter.
func (e *Sessions) release(ctx context.Context, g driver.Grant, unlock func(*lease) (bool, error), done func(*lease)) error {
	e.mu.Lock()
	l := e.leases[g.ID]
	if l == nil || l.request.Token != g.Token {
		e.mu.Unlock()
		return notHeld(g.Name, g.Token)
	}
	over := l.over
	e.mu.Unlock()
	if over {
		// The grant was lost, or the answer to a release was lost. finish makes certain
		// that the grant has ended at the server.
		if err := e.finish(ctx, l); err != nil {
			return e.closedOr(err)
		}
		return notHeld(g.Name, g.Token)
	}
	locked := l.tryLock()
	if !locked { // a ping uses the session
		brief, cancel := context.WithTimeout(ctx, busyWithin)
		locked = l.lock(brief)
		cancel()
	}
	if !locked {
		if err := ctx.Err(); err != nil {
			return e.closedOr(driver.Errorf(driver.CodeUnknown, "the session is busy: %w", err))
		}
		// A ping still waits for its answer. The end of the session frees the lock sooner.
		if err := e.finish(ctx, l); err != nil {
			return e.closedOr(err)
		}
		return driver.Errorf(driver.CodeUnknown, "the session did not answer in time, and has been ended")
	}
	defer l.unlock()
	e.mu.Lock()
	was := l.granted
	l.granted = false // from here on, its end is not reported as a loss
	e.mu.Unlock()
	if !was {
		if err := e.finish(ctx, l); err != nil {
			return e.closedOr(err)
		}
		return notHeld(g.Name, g.Token)
	}
	before := ended(l.s.Link) || e.expired(l)
	ok, err := unlock(l)
	switch {
	case err != nil:
		before = before || e.recipe.Ended(err)
		if err := e.finish(ctx, l); err != nil {
			return e.closedOr(err)
		}
		if before {
			return notHeld(g.Name, g.Token)
		}
		// The lock is free now. Whether this release has freed it is unknown.
		return driver.Errorf(driver.CodeUnknown, "the release was not confirmed, and its session has been ended: %w", err)
	case !ok:
		e.drop(l.s)
		e.forget(l)
		return notHeld(g.Name, g.Token)
	}
	done(l)
	return nil
}

// expired reports whether the server's timer may have ended the session of a grant.
func (e *Sessions) expired(l *lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	elapsed, _ := l.sent.Elapsed()
	return elapsed >= l.request.TTL
}

// Renew pings the sessions of grants.
func (e *Sessions) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	if err := e.enter(); err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	defer e.tasks.Done()
	pings := make([]*ping, len(grants))
	for i, g := range grants {
		e.mu.Lock()
		l := e.leases[g.ID]
		held := l != nil && l.granted && l.request.Token == g.Token
		given := l != nil && l.given && l.request.Token == g.Token
		e.mu.Unlock()
		if given {
			answers[i].Err = driver.Errorf(driver.CodeUnknown, "its release is not confirmed yet")
			continue
		}
		if !held {
			answers[i] = driver.Renewal{Cause: driver.CauseGone, Err: notHeld(g.Name, g.Token)}
			continue
		}
		pings[i] = e.ping(l, false)
	}
	for i, p := range pings {
		if p == nil {
			continue
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			select {
			case <-p.done:
			default:
				answers[i].Err = driver.Errorf(driver.CodeUnknown, "no answer yet: %w", ctx.Err())
				continue
			}
		}
		switch {
		case p.err != nil:
			answers[i] = driver.Renewal{Cause: driver.CauseSessionEnded, Err: p.err}
		case !p.ok:
			answers[i] = driver.Renewal{Cause: driver.CauseGone, Err: notHeld(grants[i].Name, grants[i].Token)}
		default:
			answers[i] = driver.Renewal{SentAt: p.sent, TTL: grants[i].TTL}
		}
	}
	return answers
}

// ping begins a renewal, or returns the present one. A ping may take as long as the TTL: a
// client that gives it up must give up the session. With proveOnly the ping proves the grant and
// does not renew it.
func (e *Sessions) ping(l *lease, proveOnly bool) *ping {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pingLocked(l, proveOnly)
}

func (e *Sessions) pingLocked(l *lease, proveOnly bool) *ping {
	at := &l.ping
	if proveOnly {
		at = &l.proof
	}
	if p := *at; p != nil {
		return p
	}
	p := &ping{done: make(chan struct{})}
	if e.closed {
		p.err = ErrClosed
		close(p.done)
		return p
	}
	*at = p
	e.tasks.Go(func() {
		defer close(p.done)
		ctx, cancel := context.WithTimeout(e.ctx, l.request.TTL)
		defer cancel()
		defer context.AfterFunc(ctx, func() { l.s.Close() })()
		if !l.lock(ctx) {
			p.err = driver.Errorf(driver.CodeUnknown, "the session is busy")
			e.pinged(l, p, proveOnly)
			return
		}
		e.mu.Lock()
		held, confirmed := l.granted, l.sent
		e.mu.Unlock()
		l.request.Left = l.request.TTL
		if proveOnly {
			elapsed, _ := confirmed.Elapsed()
			l.request.Left -= elapsed
		}
		switch {
		case held && l.request.Left > 0:
			p.sent = driver.Now()
			p.ok, p.err = e.recipe.Ping(ctx, l.s, &l.request)
		case held:
			p.ok = true // the server's timer is about to end the session
		}
		e.pinged(l, p, proveOnly)
		if _, ok := e.recipe.(Recorder); ok && held && l.request.Record && !l.request.Recorded {
			e.mu.Lock()
			l.again = time.Now().Add(recordAgain)
			e.mu.Unlock()
		}
		switch {
		case p.err != nil:
			// The session can no longer be used, so that the grant is over.
			cause, err := driver.CauseSessionEnded, p.err
			if ended(l.s.Link) {
				cause, err = e.recipe.Cause(l.s, &l.request, e.side)
			}
			l.unlock()
			e.lose(l, cause, err)
			if errors.Is(p.err, ErrReadOnly) {
				e.demoted(l.s.ID.Server)
			}
			p.err = &driver.Error{Code: driver.CodeNotHeld, Err: p.err}
		case held && !p.ok:
			l.unlock()
			e.lose(l, driver.CauseGone, nil)
		default:
			l.s.Watch() // no statement runs from here on
			l.unlock()
		}
	})
	return p
}

func (e *Sessions) pinged(l *lease, p *ping, proveOnly bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if proveOnly {
		l.proof = nil
		return
	}
	l.ping = nil
	if p.ok {
		l.sent = p.sent
	}
}

// demoted ends the sessions of this client at a server that has become read-only. It closes
// idle sessions at once, and pings the sessions with grants: each ping fails like the first
// one.
func (e *Sessions) demoted(server string) {
	e.side.Flush()
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.all {
		switch l := s.lease; {
		case s.ID.Server != server:
		case l == nil:
			e.retireLocked(s)
		case l.granted && !l.over:
			e.pingLocked(l, true)
		}
	}
}

// proveLocked pings one session of each server that was not pinged for proveAfter, each time
// another session. The caller holds mu.
func (e *Sessions) proveLocked(now time.Time) {
	oldest := map[string]*lease{}
	for s := range e.all {
		l := s.lease
		if l == nil || !l.granted || l.over || s.ID.Server == "" || s.Gone() == nil {
			continue
		}
		if o := oldest[s.ID.Server]; o == nil || l.proved.Before(o.proved) {
			oldest[s.ID.Server] = l
		}
	}
	for server := range e.proved {
		if oldest[server] == nil {
			delete(e.proved, server)
		}
	}
	for server, l := range oldest {
		switch last := e.proved[server]; {
		case last.IsZero():
			e.proved[server] = now // the grants themselves were the proof
		case now.Sub(last) >= proveAfter:
			e.proved[server], l.proved = now, now
			e.pingLocked(l, true)
		}
	}
}

// watchByPing pings a session whose connection does not report its end.
func (e *Sessions) watchByPing(l *lease) {
	t := time.NewTicker(proveAfter)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			<-e.ping(l, true).done
		case <-l.done:
			return
		case <-e.ctx.Done():
			return
		}
	}
}
