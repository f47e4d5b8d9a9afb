package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// release gives the grant back to the store: one try on the caller's time, the
// rest in the background. As far as the process is concerned the hold is
// released already; left was its trust.
func (h *hold) release(g driver.Grant, keep, left time.Duration) error {
	since := h.since
	timeout := min(h.l.requestTimeout(h.req.TTL), max(left, time.Millisecond))
	var b bounded
	err := h.l.store.Release(h.l.bound(&b, h.ctx, true, timeout), g, keep)
	b.end()
	if err == nil {
		h.report(EventReleased, nil, since)
		return nil
	}
	code := h.l.store.Classify(err)
	if code == driver.NotHeld {
		h.mu.Lock()
		h.loss = &LostError{Name: h.req.Name, Store: h.l.where, Token: g.Token, Cause: Gone, Err: err}
		loss := h.loss
		h.mu.Unlock()
		h.report(EventLost, loss, since)
		return loss
	}
	h.report(EventUnconfirmed, err, since)
	if !final(code) {
		h.releaseLater(g, keep)
	}
	return &failure{name: h.req.Name, store: h.l.where, kind: kinds[code], err: err}
}

// final tells whether an error of a release ends the matter. Refused does not:
// rights come back, a replica becomes the primary, and until the end of its lease
// a grant that still stands shuts everybody out.
func final(code driver.Code) bool {
	return code == driver.IsClosed || code == driver.Invalid || code == driver.Unsupported
}

// releaseLater tries again until the grant is released or gone, or until it must have
// lapsed, as nobody renews it any more. For a lock that was lost it is a
// courtesy, of which no event tells: the loss was its end.
func (h *hold) releaseLater(g driver.Grant, keep time.Duration) {
	until := time.Now().Add(keep)
	h.mu.Lock()
	lost := h.loss != nil
	h.mu.Unlock()
	lapses := h.l.guarantees.Load().Lapses && g.TTL != driver.Forever
	report := func(kind EventKind, err error) {
		if !lost {
			h.reportLater(kind, err, h.since)
		}
	}
	h.l.doLater(&chore{
		within: h.l.requestTimeout(h.req.TTL), ttl: h.req.TTL,
		run: func(ctx context.Context) error {
			// A renewal may have been on its way to the store when the lock was
			// unlocked, hence twice.
			if elapsed, _ := g.SentAt.Elapsed(); lapses && elapsed > 2*g.TTL {
				return nil
			}
			err := h.l.store.Release(ctx, g, max(time.Until(until), 0))
			code := driver.NotHeld // as after a try that was applied and not answered
			if err != nil {
				code = h.l.store.Classify(err)
			}
			if code == driver.NotHeld {
				report(EventReleased, nil)
				return nil
			}
			if final(code) {
				return nil
			}
			return err
		},
		failed: func(err error) { report(EventUnconfirmed, err) },
	})
}

// abandon gives back a grant that nobody came to use.
func (h *hold) abandon() {
	h.mu.Lock()
	if h.state == held {
		h.state = released
	}
	g := h.grant
	h.mu.Unlock()
	h.releaseLater(g, 0)
}

// report tells the hooks of a step in the life of a grant. An EventReleased is
// told on this goroutine, whose work at the store is done; the rest later, so
// that no hook delays a lock.
func (h *hold) report(kind EventKind, err error, since time.Time) {
	if kind != EventReleased {
		h.reportLater(kind, err, since)
		return
	}
	if h.l.cfg.hooks != nil {
		h.l.emit(h.ctx, h.event(kind, err, since))
	}
}

func (h *hold) reportLater(kind EventKind, err error, since time.Time) {
	if h.l.cfg.hooks != nil {
		h.l.emitLater(h.ctx, h.event(kind, err, since))
	}
}

func (h *hold) event(kind EventKind, err error, since time.Time) Event {
	e := h.l.describe(kind, h.req.Name, &h.set)
	e.Token, e.Slot, e.Took, e.Err = h.grant.Token, h.grant.Slot, e.At.Sub(since), err
	if lost, ok := err.(*LostError); ok {
		e.Cause = lost.Cause
	}
	return e
}
