package sqlkit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Renew pings the sessions of grants.
func (e *Sessions) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	if err := e.Enter(); err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	defer e.Leave()
	answers := make([]driver.Renewal, len(grants))
	pings := make([]*ping, len(grants))
	for i, g := range grants {
		pings[i], answers[i] = e.beginRenewal(g)
	}
	for i, p := range pings {
		if p != nil {
			answers[i] = p.renewal(ctx, grants[i])
		}
	}
	return answers
}

// beginRenewal pings the session of a grant. If it cannot, it returns the outcome of the renewal.
func (e *Sessions) beginRenewal(g driver.Grant) (*ping, driver.Renewal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.leases[g.ID]
	switch found := l != nil && l.request.Token == g.Token; {
	case found && l.ending:
		return nil, driver.Renewal{Err: driver.Errorf(driver.CodeUnknown, "its release is not confirmed yet")}
	case found && l.granted:
		return e.pingLocked(l, false), driver.Renewal{}
	}
	return nil, driver.Renewal{Cause: driver.CauseGone, Err: driver.NotHeld(g.Name, g.Token)}
}

// ping is a statement by which a session proves its grant. It outlives the call that began it.
type ping struct {
	proveOnly bool // it does not renew the grant
	sent      driver.Instant
	done      chan struct{} // closed at the end
	ok        bool          // the session has the grant
	err       error
}

// renewal waits for the outcome of a ping that renews a grant.
func (p *ping) renewal(ctx context.Context, g driver.Grant) driver.Renewal {
	select {
	case <-p.done:
	case <-ctx.Done():
		select {
		case <-p.done:
		default:
			return driver.Renewal{Err: driver.Errorf(driver.CodeUnknown, "no answer yet: %w", ctx.Err())}
		}
	}
	switch {
	case p.err != nil:
		return driver.Renewal{Cause: driver.CauseSessionEnded, Err: p.err}
	case !p.ok:
		return driver.Renewal{Cause: driver.CauseGone, Err: driver.NotHeld(g.Name, g.Token)}
	}
	return driver.Renewal{SentAt: p.sent, TTL: g.TTL}
}

// pingLocked begins a ping, or returns the present one if that suffices. A ping may take as long as
// the TTL: a client that gives it up must give up the session. The caller holds mu.
func (e *Sessions) pingLocked(l *lease, proveOnly bool) *ping {
	if p := l.ping; p != nil && (proveOnly || !p.proveOnly) {
		return p
	}
	p := &ping{proveOnly: proveOnly, done: make(chan struct{})}
	if e.Stopped() {
		p.err = calls.ErrClosed
		close(p.done)
		return p
	}
	l.ping = p
	e.Tasks.Go(func() { e.runPing(l, p) })
	return p
}

// runPing sends a ping when the session is free, and then ends the grant if the session does not have it.
func (e *Sessions) runPing(l *lease, p *ping) {
	defer close(p.done)
	ctx, cancel := context.WithTimeout(e.Ctx, l.request.TTL)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.s.Close() })()
	if !l.lock(ctx) {
		p.err = driver.Errorf(driver.CodeUnknown, "the session is busy")
		e.pinged(l, p, false)
		return
	}
	held := e.sendPing(ctx, l, p)
	e.pinged(l, p, held && l.request.Record && !l.request.Recorded)
	switch {
	case p.err != nil:
		e.pingFailed(l, p)
	case held && !p.ok:
		e.lose(l, driver.CauseGone, nil) // before a release can give the session to another request
		l.unlock()
	default:
		l.s.Watch() // no statement runs from here on
		l.unlock()
	}
}

// sendPing executes a ping on the session of a lease, which the caller has reserved. It returns false
// if the lease has no grant.
func (e *Sessions) sendPing(ctx context.Context, l *lease, p *ping) (held bool) {
	e.mu.Lock()
	held, confirmed := l.granted, l.sent
	e.mu.Unlock()
	l.request.Left = l.request.TTL
	if p.proveOnly {
		elapsed, _ := confirmed.Elapsed()
		l.request.Left -= elapsed
	}
	switch {
	case !held:
	case l.request.Left <= 0:
		p.ok = true // the server's timer is about to end the session
	default:
		p.sent = driver.Now()
		p.ok, p.err = e.recipe.Ping(ctx, l.s, &l.request)
	}
	return held
}

// pinged sets the result of a ping. If the holder could not be recorded, the engine tries that again
// after recordAgain.
func (e *Sessions) pinged(l *lease, p *ping, unrecorded bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if unrecorded {
		l.due = time.Now().Add(recordAgain)
		e.visit(l)
	}
	if l.ping == p {
		l.ping = nil
	}
	if p.ok && !p.proveOnly {
		l.sent = p.sent
	}
}

// pingFailed ends a grant whose session can no longer be used, and unlocks the lease.
func (e *Sessions) pingFailed(l *lease, p *ping) {
	cause, err := driver.CauseSessionEnded, p.err
	if ended(l.s.Link) {
		cause, err = e.recipe.Cause(l.s, &l.request, e.side)
	}
	e.lose(l, cause, err) // before a release can give the session to another request
	l.unlock()
	if errors.Is(p.err, ErrReadOnly) {
		e.demoted(l.s.ID.Server)
	}
	p.err = &driver.Error{Code: driver.CodeNotHeld, Err: p.err}
}

// demoted ends the sessions of this client at a server that has become read-only. It closes
// idle sessions at once, and pings the sessions with grants: each ping fails like the first
// one.
func (e *Sessions) demoted(server string) {
	e.side.Flush()
	e.idle.end(func(i idleLink) bool { return i.link.(*Session).ID.Server == server })
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.leases {
		if l.s.ID.Server == server && l.granted && !l.closed {
			e.pingLocked(l, true)
		}
	}
}

// prove calls proveOnce as long as there are grants that need it.
func (e *Sessions) prove() {
	for backoff.Sleep(e.Ctx, proveAfter) == nil && e.proveOnce() {
	}
}

// proveOnce pings the sessions with grants whose connections do not report their end, and one session of each server
// that may be demoted, each time another one. It returns false if there is none.
func (e *Sessions) proveOnce() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.proving = false
	oldest := map[string]*lease{}
	for _, l := range e.leases {
		switch o := oldest[l.s.ID.Server]; {
		case !l.granted || l.closed:
		case l.s.Gone() == nil:
			e.proving = true
			e.pingLocked(l, true)
		case l.s.ID.Server != "" && (o == nil || l.proved.Before(o.proved)):
			oldest[l.s.ID.Server] = l
		}
	}
	for _, l := range oldest {
		e.proving, l.proved = true, time.Now()
		e.pingLocked(l, true)
	}
	return e.proving
}
