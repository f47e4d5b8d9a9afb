package sqlkit

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Swap replaces old by a grant of r in one write of the row, if that is possible. Otherwise it
// releases old, and then does what Acquire does. See [driver.Swapper].
func (o *Optimistic) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	if heldSince, ok := o.canReplace(&old, &r); ok {
		brief, cancel := context.WithTimeout(ctx, min(max(old.TTL, time.Millisecond), AnswerWithin))
		g, outcome, err := o.replace(brief, old, r)
		cancel()
		switch {
		case err != nil && driver.CodeOf(err) == driver.CodeUnknown:
			released(err)
			return driver.Grant{}, err
		case err != nil: // nothing was written, and the core releases old
			return driver.Grant{}, o.withdrawn(ctx, err)
		case outcome == PassGranted:
			released(nil)
			g, err = o.keep(r, g)
			o.setHeldSince(r.ID, heldSince)
			return g, err
		case outcome == PassReleased:
			released(nil)
			return o.Acquire(ctx, r)
		}
	}
	if err := o.Release(ctx, old, 0); err == nil || driver.CodeOf(err) == driver.CodeNotHeld || driver.CodeOf(err) == driver.CodeUnknown {
		released(err)
	} else {
		return driver.Grant{}, o.withdrawn(ctx, err)
	}
	return o.Acquire(ctx, r)
}

// canReplace reports whether one write may replace old by a grant of r. It also returns the time of the
// first grant in the sequence of grants that Swap has replaced. After driver.HandoffTime since then it
// returns false, so that other clients can get the name. The row does not show whether they wait.
func (o *Optimistic) canReplace(old *driver.Grant, r *driver.Request) (heldSince time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.held[old.ID]
	if k == nil || k.g.Token != old.Token || old.Limit != driver.Exclusive || r.Limit != driver.Exclusive || old.Name != r.Name {
		return heldSince, false
	}
	return k.heldSince, time.Since(k.heldSince) < driver.HandoffTime
}

// setHeldSince sets the heldSince of a grant that has replaced another.
func (o *Optimistic) setHeldSince(id string, heldSince time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k := o.held[id]; k != nil {
		k.heldSince = heldSince
	}
}

// replace replaces old by a grant of r in one write. With PassReleased the row had old, and now has neither
// grant. With PassNotHeld the row did not have old, and nothing was written.
func (o *Optimistic) replace(ctx context.Context, old driver.Grant, r driver.Request) (g driver.Grant, outcome PassOutcome, err error) {
	o.forget(old.ID) // from now on the client does not report the grant's end as a loss
	c := claim{r: r}
	p := &op{name: o.key(r.Name)}
	found := false
	p.step = func(row *row) (*content, error) {
		var granted bool
		var err error
		if g, granted, err = c.grant(row); granted {
			outcome = PassGranted
			return nil, err
		}
		h := row.byID(old.ID)
		if h == nil || h.Token != old.Token {
			if outcome = PassNotHeld; found {
				outcome = PassReleased
			}
			return nil, nil
		}
		found = true
		without := *row
		without.Holders = slices.Clone(row.Holders)
		without.remove(func(h holder) bool { return h.ID == old.ID })
		return c.write(p, &without), nil
	}
	if err = o.applyOne(ctx, p); err != nil {
		return g, PassRefused, err
	}
	return g, outcome, nil
}
