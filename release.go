package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// release makes the first attempt to release a lease. It runs on the goroutine of Unlock,
// for at most the validity that is left. The caller's context may have ended, so the
// request does not depend on it.
func (l *Locker) release(o *outcome) error {
	x := o.lease
	timeout := min(l.requestTimeout(x.req.TTL), max(o.within, time.Millisecond))
	until := time.Now().Add(o.keep)
	var sent bool
	var err error
	if o.keep == 0 {
		sent, timeout, err = l.releaseBySwap(x, timeout)
	}
	if !sent {
		err = l.store.Release(l.withTimeout(&x.releasing, o.holder.ctx, true, timeout), x.standing.grant, o.keep) // mutation: release
		x.releasing.end()
	}
	e := event{kind: released, keep: max(time.Until(until), 0), err: err}
	var code driver.Code
	if err != nil {
		code = l.store.Classify(err)
		switch {
		case code == driver.CodeNotHeld:
			e.kind = releaseDenied
		case final(code):
			e.kind = releaseImpossible
		default:
			e.kind = releaseUnconfirmed
		}
	}
	switch answered, _ := l.apply(x, &e); {
	case err == nil:
		return nil
	case answered.loss != nil:
		return answered.loss
	}
	return &failure{name: x.req.Name, store: l.where, kind: kinds[code], err: err}
}

// final reports whether a retry of a release is useless. After Refused a retry may succeed:
// an operator may restore the rights, and a replica may become the primary. Until its TTL has
// passed, a lease that still stands keeps all other clients out.
func final(code driver.Code) bool {
	return code == driver.CodeClosed || code == driver.CodeInvalid || code == driver.CodeUnsupported
}

// releaseLater retries a release in the background until the lease is released or gone. It
// also stops when the lease must have expired at the store, because the client no longer renews it. The
// lease is to stand for keep. Hooks get events about the release only if report is set: for a
// lost lease the loss was its end. If quiet is set, they get none before one about a failure.
func (h *holder) releaseLater(keep time.Duration, since time.Duration, report, quiet bool) {
	x, until := h.lease, time.Now().Add(keep)
	l, g := x.l, x.standing.grant
	guarantees := l.guarantees.Load()
	expires := guarantees.LeftoversExpire && g.TTL != driver.Forever
	reportIf := func(kind EventKind, err error) {
		if report {
			h.reportLater(kind, err, since)
		}
	}
	l.doLater(&task{
		timeout: l.requestTimeout(x.req.TTL), ttl: x.req.TTL,
		run: func(ctx context.Context) error {
			// A renewal may have been on its way when the lock was unlocked. The lease
			// then stands for up to a second TTL.
			if age, _ := g.SentAt.Elapsed(); expires && age > 2*max(g.TTL, x.req.TTL)+guarantees.Granularity {
				return nil
			}
			err := l.store.Release(ctx, g, max(time.Until(until), 0))
			code := driver.CodeNotHeld // a confirmed release ends the task, too
			if err != nil {
				code = l.store.Classify(err)
			}
			switch {
			case code == driver.CodeNotHeld:
				if !quiet {
					reportIf(EventReleased, nil)
				}
				return nil
			case final(code):
				return nil
			}
			return err
		},
		failed: func(err error) {
			quiet = false
			reportIf(EventUnconfirmed, err)
		},
	})
}

// reportReleased calls the hooks on this goroutine, after the store has confirmed the release.
func (h *holder) reportReleased(since time.Duration) {
	if l := h.lease.l; l.cfg.hooks != nil {
		l.emit(h.ctx, h.event(EventReleased, nil, since))
	}
}

// reportLater calls the hooks in the background, so that no hook delays a lock.
func (h *holder) reportLater(kind EventKind, err error, since time.Duration) {
	if l := h.lease.l; l.cfg.hooks != nil {
		l.emitLater(h.ctx, h.event(kind, err, since))
	}
}

func (h *holder) event(kind EventKind, err error, since time.Duration) Event {
	x := h.lease
	e := x.l.describe(kind, x.req.Name, h.set)
	e.Token, e.Slot, e.Took, e.Err = h.token, x.firstStanding.grant.Slot, x.l.sinceStart(e.At)-since, err
	if lost, ok := err.(*LostError); ok {
		e.Cause = lost.Cause
	}
	return e
}
