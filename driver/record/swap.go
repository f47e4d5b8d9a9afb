package record

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Swap replaces old by a grant of r in one write of the record, if that is possible. Otherwise it
// releases old, and then does what Acquire does. See [driver.Swapper].
func (e *engine) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error),
) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	if r.Wait && e.queue > 1 {
		r.Waited = max(r.Waited, 1) // so that it may get a queue entry
	}
	if heldSince, ok := e.canReplace(&old, &r); ok {
		brief, cancel := context.WithTimeout(ctx, min(max(old.TTL, time.Millisecond), answerTimeout))
		g, granted, had, err := e.replace(brief, old, r, time.Since(heldSince) >= driver.HandoffTime)
		cancel()
		switch {
		case err != nil && driver.CodeOf(err) == driver.CodeUnknown:
			released(err)
			return driver.Grant{}, err
		case err != nil: // nothing was written, and the core releases old
			return driver.Grant{}, e.withdrawn(ctx, err)
		case granted:
			released(nil)
			return e.keep(r, g, heldSince)
		case had:
			released(nil)
			return e.Acquire(ctx, r)
		}
	}
	err := e.Release(ctx, old, 0)
	if code := driver.CodeOf(err); err != nil && code != driver.CodeNotHeld && code != driver.CodeUnknown {
		return driver.Grant{}, e.withdrawn(ctx, err)
	}
	released(err)
	return e.Acquire(ctx, r)
}

// canReplace reports whether one write may replace old by a grant of r. It also returns the time of the
// first grant in the sequence of grants that Swap has replaced.
func (e *engine) canReplace(old *driver.Grant, r *driver.Request) (heldSince time.Time, ok bool) {
	h := e.held.Get(old.ID)
	exclusive := old.Limit == driver.Exclusive && r.Limit == driver.Exclusive
	if h == nil || h.Token != old.Token || !exclusive || old.Name != r.Name {
		return heldSince, false
	}
	return h.Handle.(handle).since, true
}

// replace replaces old by a grant of r in one write, or by a queue entry of r if turn is set and other requests wait. had
// reports that the record had old. If it is then not granted, the record has neither grant. If had is false, nothing
// was written, or old was broken.
func (e *engine) replace(ctx context.Context, old driver.Grant, r driver.Request, turn bool,
) (g driver.Grant, granted, had bool, err error) {
	e.held.Forget(old.ID) // from now on the client does not report the grant's end as a loss
	c := claim{e: e, r: r}
	p := &op{key: e.key(r.Name)}
	p.step = func(v *view) (*content, error) {
		var err error
		if g, granted, err = c.grant(v); granted {
			return nil, err
		}
		h := v.byID(old.ID)
		switch {
		case h == nil && v.read.byID(old.ID) != nil: // it has expired; the write keeps a late renewal from reviving it
			return &v.content, nil // mutation: record-swap-expired
		case h == nil || h.Token != old.Token:
			had = had && v.cause(old.Token) != driver.CauseTaken
			return nil, nil
		}
		had = true
		without := *v
		without.Holders = slices.Clone(v.Holders)
		without.remove(func(h holder) bool { return h.ID == old.ID }) // mutation: record-swap
		if turn && len(v.Queue) > 0 {
			p.wake = true
			if queued := without.waits(&r, e.lasts(0), e.entries(r.TTL)); queued != nil {
				return queued, nil
			}
			return without.with(without.Holders, ""), nil
		}
		return c.write(p, &without), nil
	}
	err = e.applyOne(ctx, p)
	return g, granted, had, err
}
