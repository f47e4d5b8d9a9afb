package sqlkit

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/fallback"
)

// Acquire requests a grant. If the lock is busy, r.Wait is set and the engine has a Waker, Acquire
// tries again until it gets the grant or ctx ends.
func (o *Optimistic) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := o.enter(); err != nil {
		return driver.Grant{}, err
	}
	defer o.tasks.Done()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	ctx, end := o.bind(ctx)
	defer end()
	var changed <-chan struct{}
	var stop func()
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	for poll := (backoff.Backoff{First: 100 * time.Millisecond, Max: OptimisticFallback}); ; {
		brief, cancel := answerTimeout(ctx, r.Wait)
		g, next, err := o.try(brief, r)
		cancel()
		if err == nil {
			return o.keep(r, g)
		}
		if driver.CodeOf(err) != driver.CodeBusy || !r.Wait || o.waker == nil {
			return driver.Grant{}, o.withdrawn(ctx, err)
		}
		if stop == nil {
			// The next try sees any change that precedes Listen.
			if changed, stop, err = o.waker.Listen(ctx, o.key(r.Name)); err != nil {
				return driver.Grant{}, o.withdrawn(ctx, Unreached(o.faults, err))
			}
			continue
		}
		busy, _ := err.(*driver.BusyError)
		r.From.Queued(busy.Holders)
		t := time.NewTimer(min(fallback.After(ctx, poll.Next()), max(next, time.Millisecond)))
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if err := ctx.Err(); err != nil {
			return driver.Grant{}, o.withdrawn(ctx, &driver.Error{Code: driver.CodeWithdrawn, Err: err})
		}
	}
}

// ended returns ErrClosed instead of err if the engine was closed, unless the outcome is unknown.
func (o *Optimistic) ended(err error) error {
	if err != nil && o.ctx.Err() != nil && driver.CodeOf(err) != driver.CodeUnknown {
		return ErrClosed
	}
	return err
}

// withdrawn returns the error with which Acquire fails. If the caller's context has ended, it
// replaces CodeUnavailable by CodeWithdrawn. Otherwise it returns what ended returns.
func (o *Optimistic) withdrawn(ctx context.Context, err error) error {
	if ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable && o.ctx.Err() == nil {
		return &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	return o.ended(err)
}

// claim is a request and the writes of its grant.
type claim struct {
	r      driver.Request
	writes []grantWrite
}

// grantWrite is a write of a grant: the expiry time of the grant, and when the client sent the read of the
// row that the write replaces.
type grantWrite struct {
	expires int64
	sent    driver.Instant
}

// grant returns the grant of the request, if the row has one. Its expiry time shows which write took effect,
// because a retry makes a second write. The validity counts from the read before that write.
func (c *claim) grant(row *row) (g driver.Grant, ok bool, err error) {
	h := row.byID(c.r.ID)
	if h == nil {
		return g, false, nil
	}
	g = driver.Grant{ID: c.r.ID, Name: c.r.Name, Limit: c.r.Limit, Token: h.Token, Tokens: h.Tokens, TTL: c.r.TTL, Slot: h.Slot}
	for _, w := range c.writes {
		if w.expires == h.Expires {
			g.SentAt = w.sent
			return g, true, nil
		}
	}
	return g, true, driver.Errorf(driver.CodeUnknown, "the row has another grant under the ID %s", c.r.ID)
}

// write returns the content that adds the grant of the request to a row that admits it. It records the
// write for grant.
func (c *claim) write(p *op, row *row) *content {
	r := &c.r
	first, n := row.draw(tokens(r))
	p.token = first + int64(n) - 1
	h := holder{Owner: OwnerOf(r.From.Owner(), row.now), Limit: r.Limit, Slot: driver.NoSlot,
		Token: uint64(first), Expires: row.now + micros(r.TTL), TTL: micros(r.TTL)}
	if n > 1 {
		h.Tokens = n
	}
	if r.Limit > driver.Exclusive && r.Limit <= driver.MaxLimit {
		h.Slot = row.freeSlot()
	}
	c.writes = append(c.writes, grantWrite{h.Expires, row.sent})
	return &content{Holders: append(slices.Clone(row.Holders), h), Taken: row.Taken}
}

// try requests the grant once. With a BusyError it returns the time after which another try
// is useful even without a notification.
func (o *Optimistic) try(ctx context.Context, r driver.Request) (g driver.Grant, next time.Duration, err error) {
	c := claim{r: r}
	p := &op{name: o.key(r.Name)}
	corrected := false
	p.step = func(row *row) (*content, error) {
		var granted bool
		if g, granted, err = c.grant(row); granted {
			return nil, err
		}
		if !row.admits(r.Limit) {
			if row.ahead && !corrected { // without this write, the TTL would begin again at each read
				corrected = true
				return &row.content, nil
			}
			next = time.Duration(row.firstExpiry()-row.now) * time.Microsecond
			return nil, &driver.BusyError{Holders: row.describe(row.now)}
		}
		return c.write(p, row), nil
	}
	if err := o.apply(ctx, p); err != nil {
		return g, 0, err
	}
	return g, next, p.err
}

// micros returns d in microseconds, rounded up.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// Undo removes the grant of a request, and ensures that a late write cannot add it again.
func (o *Optimistic) Undo(ctx context.Context, r driver.Request) error {
	version, exists, first := int64(0), false, true
	p := &op{name: o.key(r.Name), wake: true}
	p.step = func(row *row) (*content, error) {
		next := &content{Holders: slices.Clone(row.Holders), Taken: row.Taken}
		there := next.remove(func(h holder) bool { return h.ID == r.ID })
		// The row has another version than at the previous read. A late write of the request names
		// a version that the client read before Undo, so it has no effect.
		if !there && !first && (row.version != version || row.exists != exists) {
			return nil, nil
		}
		version, exists, first = row.version, row.exists, false
		return next, nil
	}
	err := o.applyOne(ctx, p)
	if err == nil {
		o.forget(r.ID)
	}
	return err
}

// applyOne applies one op. The context of the op ends when the engine is closed.
func (o *Optimistic) applyOne(ctx context.Context, p *op) error {
	ctx, end, err := o.call(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err = o.apply(ctx, p); err == nil {
		err = p.err
	}
	return o.ended(err)
}

func notHeld(name string, token uint64) error {
	return driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d exists", name, token)
}

// Release ends a grant. If keep is positive, the row keeps the grant for that time, marked as
// released.
func (o *Optimistic) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	o.forget(g.ID) // from now on the client does not report the grant's end as a loss
	found := false
	p := &op{name: o.key(g.Name), wake: true}
	p.step = func(row *row) (*content, error) {
		h := row.byID(g.ID)
		if h == nil || h.Token != g.Token {
			if found {
				return nil, nil
			}
			return nil, notHeld(g.Name, g.Token)
		}
		found = true
		next := &content{Holders: slices.Clone(row.Holders), Taken: row.Taken}
		if keep > 0 {
			n := next.byID(g.ID)
			n.Left, n.Expires, n.TTL = true, row.now+micros(keep), micros(keep)
		} else {
			next.remove(func(h holder) bool { return h.ID == g.ID })
		}
		return next, nil
	}
	err := o.applyOne(ctx, p)
	if err == nil {
		o.sweep()
	}
	return err
}
