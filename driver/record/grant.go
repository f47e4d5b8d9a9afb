package record

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// Acquire requests a grant. If the lock is busy, r.Wait is set and the engine can wait, Acquire tries again
// until it gets the grant or ctx ends.
func (e *engine) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return e.acquire(ctx, r, r.Waited > 0)
}

// acquire is Acquire. entered reports that the request may have a queue entry.
func (e *engine) acquire(ctx context.Context, r driver.Request, entered bool) (driver.Grant, error) {
	ctx, end, err := e.calls.Call(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer end()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, e.leave(ctx, r, entered, &driver.Error{Code: driver.CodeWithdrawn, Err: err})
	}
	began, waited := time.Now(), r.Waited
	var changed <-chan struct{}
	stop := func() {}
	defer func() { stop() }()
	if r.Wait && e.waiters.watched() { // so that the first try sees any change that precedes listen
		if changed, stop, err = e.waiters.listen(ctx, e.key(r.Name), r.ID); err != nil {
			return driver.Grant{}, e.leave(ctx, r, entered, &driver.Error{Code: driver.CodeUnavailable, Err: err})
		}
		r.Waited = max(waited, 1)
	}
	for poll := (backoff.Backoff{First: min(100*time.Millisecond, e.o.Poll), Max: e.o.Poll}); ; {
		g, next, err := e.tryBriefly(ctx, r, &entered)
		if err == nil {
			return e.keep(r, g, time.Now())
		}
		if driver.CodeOf(err) != driver.CodeBusy || !r.Wait || e.o.Poll == 0 {
			return driver.Grant{}, e.leave(ctx, r, entered, err)
		}
		r.Waited = waited + max(time.Since(began), 1)
		if changed == nil {
			// The next try sees any change that precedes listen.
			if changed, stop, err = e.waiters.listen(ctx, e.key(r.Name), r.ID); err != nil {
				return driver.Grant{}, e.leave(ctx, r, entered, &driver.Error{Code: driver.CodeUnavailable, Err: err})
			}
			continue
		}
		busy, _ := err.(*driver.BusyError)
		r.From.Queued(busy.Holders)
		// With a coarse clock, next may be small until the clock ticks.
		t := time.NewTimer(min(wakeup.Fallback(ctx, poll.Next()), max(next, 20*time.Millisecond)))
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if err := ctx.Err(); err != nil {
			return driver.Grant{}, e.leave(ctx, r, entered, &driver.Error{Code: driver.CodeWithdrawn, Err: err})
		}
	}
}

// leave returns the error with which a wait fails. The request gives up its queue entry, if it may have one, so that the
// other waiters do not wait for it. If that fails, the core has to undo the request.
func (e *engine) leave(ctx context.Context, r driver.Request, entered bool, err error) error {
	late := errors.Is(err, errEntry)
	err = e.withdrawn(ctx, err)
	code := driver.CodeOf(err)
	if !r.Wait || !entered || code != driver.CodeWithdrawn && code != driver.CodeUnavailable {
		return err
	}
	if late {
		return &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	p := &op{key: e.key(r.Name), wake: true}
	p.step = func(v *view) (*content, error) {
		if v.position(r.ID) < 0 {
			return nil, nil
		}
		return v.with(v.Holders, r.ID), nil
	}
	if e.apply(ctx, p); p.err != nil {
		return &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	return err
}

// tryBriefly calls try, with a timeout if the request waits.
func (e *engine) tryBriefly(ctx context.Context, r driver.Request, entered *bool) (driver.Grant, time.Duration, error) {
	if r.Wait {
		brief, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		ctx = brief
	}
	return e.try(ctx, r, entered)
}

// withdrawn returns the error with which Acquire fails. If the caller's context has ended, it
// replaces CodeUnavailable by CodeWithdrawn. Otherwise it returns what ended returns.
func (e *engine) withdrawn(ctx context.Context, err error) error {
	if ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable && e.calls.Ctx.Err() == nil {
		return &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	return e.ended(err)
}

// errEntry is the error of a write whose outcome is unknown, and that at most gives a request its queue entry.
var errEntry = errors.New("the queue entry of the waiter is unknown")

// claim is a request and the writes of its grant.
type claim struct {
	e      *engine
	r      driver.Request
	writes []grantWrite
}

// grantWrite is a write of a grant: the expiry time of the grant, and when the client sent the read of the
// record that the write replaces.
type grantWrite struct {
	expires int64
	sent    driver.Instant
}

// grant returns the grant of the request, if the record has one. Its expiry time shows which write took effect,
// because a retry makes a second write. The validity counts from the read before that write.
func (c *claim) grant(v *view) (g driver.Grant, ok bool, err error) {
	h := v.byID(c.r.ID)
	if h == nil {
		return g, false, nil
	}
	g = driver.Grant{ID: c.r.ID, Name: c.r.Name, Limit: c.r.Limit, TTL: c.r.TTL,
		Token: h.Token, Tokens: h.Tokens, Slot: h.Slot}
	for _, w := range c.writes {
		if w.expires == h.Expires {
			g.SentAt = w.sent
			if v.read.alone(g.Last()) {
				g.Handle = handle{alone: v.version, read: v.now}
			}
			return g, true, nil
		}
	}
	return g, true, driver.Errorf(driver.CodeUnknown, "the record has another grant under the ID %s", c.r.ID)
}

// write returns the content that adds the grant of the request to a record that admits it. It records the
// write for grant.
func (c *claim) write(p *op, v *view) *content {
	r := &c.r
	first, n := v.draw(tokens(r))
	p.token = first + int64(n) - 1
	lasts := c.e.lasts(r.TTL)
	h := holder{owner: ownerOf(r.From.Owner(), v.now), Limit: r.Limit, Slot: driver.NoSlot,
		Token: uint64(first), Expires: v.now + lasts, TTL: lasts}
	h.ID = r.ID
	if n > 1 {
		h.Tokens = n
	}
	if r.Limit > driver.Exclusive && r.Limit <= driver.MaxLimit {
		h.Slot = v.freeSlot()
	}
	c.writes = append(c.writes, grantWrite{h.Expires, v.sent})
	next := v.with(append(slices.Clone(v.Holders), h), r.ID)
	next.lasting = true
	return next
}

// try requests the grant once. It sets entered if the request may have a queue entry. With a BusyError it returns the
// time after which another try is useful even without a notification.
func (e *engine) try(ctx context.Context, r driver.Request, entered *bool) (g driver.Grant, next time.Duration, err error) {
	c := claim{e: e, r: r}
	p := &op{key: e.key(r.Name)}
	corrected, granting := false, true
	p.step = func(v *view) (*content, error) {
		var granted bool
		if g, granted, err = c.grant(v); granted {
			return nil, err
		}
		*entered = *entered || v.position(r.ID) >= 0
		if !v.admits(r.ID, r.Limit) {
			if v.ahead && !corrected { // without this write, the TTL would begin again at each read
				corrected = true
				return &v.content, nil // mutation: record-ahead
			}
			if queued := v.waits(&r, e.lasts(0), e.entries(r.TTL)); queued != nil {
				granting, *entered = false, true
				return queued, nil
			}
			next = time.Duration(v.firstExpiry()-v.now) * time.Microsecond
			busy := &driver.BusyError{Holders: v.describe(v.now + e.lasts(0))}
			if v.first() == r.ID {
				// A coarse clock does not show how young the grant is.
				busy.Retry = max(time.Duration(v.now-v.newest())*time.Microsecond/2, time.Duration(e.lasts(0))*time.Microsecond, quickest)
			}
			return nil, busy
		}
		granting = true
		next := c.write(p, v)
		p.wake = v.first() == r.ID && next.room(r.Limit) // others waited only for their turn
		return next, nil
	}
	if e.apply(ctx, p); !granting && driver.CodeOf(p.err) == driver.CodeUnknown {
		p.err = driver.Errorf(driver.CodeUnavailable, "%w: %w", errEntry, p.err)
	}
	return g, next, p.err
}

// Undo removes the grant of a request, and ensures that a late write cannot add it again.
func (e *engine) Undo(ctx context.Context, r driver.Request) error {
	version, first := "", true
	p := &op{key: e.key(r.Name), wake: true}
	p.step = func(v *view) (*content, error) {
		next := v.with(slices.Clone(v.Holders), r.ID)
		there := next.remove(func(h holder) bool { return h.ID == r.ID }) || v.position(r.ID) >= 0
		// The record has another version than at the previous read. A late write of the request names
		// a version that the client read before Undo, so it has no effect.
		if !there && !first && v.version != version { // mutation: record-undo
			return nil, nil
		}
		version, first = v.version, false
		return next, nil
	}
	err := e.applyOne(ctx, p)
	if err == nil {
		e.held.Forget(r.ID)
	}
	return err
}

// applyOne applies one op. The context of the op ends when the engine is closed.
func (e *engine) applyOne(ctx context.Context, p *op) error {
	ctx, end, err := e.calls.Call(ctx)
	if err != nil {
		return err
	}
	defer end()
	e.apply(ctx, p)
	return e.ended(p.err)
}

// Release ends a grant. If keep is positive, the record keeps the grant for that time, marked as
// released.
func (e *engine) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	old := e.held.Get(g.ID)
	e.held.Forget(g.ID) // from now on the client does not report the grant's end as a loss
	direct, found, kept, until := false, false, keep == 0, int64(0)
	p := &op{key: e.key(g.Name), wake: true}
	p.step = func(v *view) (*content, error) {
		first := direct
		direct = false
		h := v.byID(g.ID)
		kept = keep == 0 || until > 0 && v.now >= until || // its time may be over before the answer comes
			slices.ContainsFunc(v.Holders, func(h holder) bool { return h.ID == g.ID && h.Left })
		switch {
		case h == nil && v.read.byID(g.ID) != nil: // the write keeps a late renewal from reviving it
			return &v.content, nil // mutation: record-release-expired
		case h == nil || h.Token != g.Token:
			switch {
			case v.cause(g.Token) == driver.CauseTaken:
			case first && uint64(v.Token) > g.Last(): // a proxy has repeated the write, or the grant had ended before
				return nil, driver.Errorf(driver.CodeUnknown, "the record has a later grant")
			case found, first && uint64(v.Token) == g.Last():
				return nil, nil
			}
			return nil, driver.NotHeld(g.Name, g.Token)
		}
		found = true
		next := v.with(slices.Clone(v.Holders), "")
		if keep > 0 {
			n := next.byID(g.ID)
			lasts := e.lasts(keep)
			n.Left, n.Expires, n.TTL = true, v.now+lasts, lasts // mutation: record-keep
			until, next.lasting = n.Expires, true
		} else {
			next.remove(func(h holder) bool { return h.ID == g.ID })
		}
		return next, nil
	}
	if e.apart && keep == 0 && old != nil && old.Token == g.Token {
		// Each change gives the record another version. If the record has not changed since the grant, the grant stands, and
		// the record without it is known. The answer to a Put shows that, unlike that of an Exchange.
		h := old.Handle.(handle)
		age, _ := old.SentAt.Elapsed()
		if direct = h.alone != "" && age < min(g.TTL, e.o.checkInterval()); direct {
			p.replace(&Object{Version: h.alone, Now: time.UnixMicro(h.read)}, &content{Token: int64(g.Last())})
		}
	}
	err := e.applyOne(ctx, p)
	switch {
	case err == nil && !kept:
		return driver.NotHeld(g.Name, g.Token) // it has expired, and the record does not keep it
	case err == nil:
		e.sweep()
	}
	return err
}
