package sqlkit

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire grants, or waits where there is a Waker, or says no.
func (o *Optimistic) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := o.enter(); err != nil {
		return driver.Grant{}, err
	}
	defer o.tasks.Done()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	ctx, end := o.bound(ctx)
	defer end()
	var changed <-chan struct{}
	var stop func()
	for fallback := newFallback(); ; {
		g, next, err := o.look(ctx, r)
		if err == nil {
			if stop != nil {
				stop()
			}
			return o.keep(r, g)
		}
		if driver.CodeOf(err) != driver.CodeBusy || !r.Wait || o.waker == nil {
			if stop != nil {
				stop()
			}
			return driver.Grant{}, o.withdrawn(ctx, err)
		}
		if stop == nil {
			// What changed before it listens is seen by trying again.
			if changed, stop, err = o.waker.Listen(ctx, o.key(r.Name)); err != nil {
				coded, _ := o.faults.Sort(err)
				if driver.CodeOf(coded) == driver.CodeUnknown {
					coded = driver.Errorf(driver.CodeUnavailable, "%w", err) // nothing was asked for
				}
				return driver.Grant{}, o.withdrawn(ctx, coded)
			}
			continue
		}
		busy, _ := err.(*driver.BusyError)
		r.From.Queued(busy.Holders)
		t := time.NewTimer(min(fallback.next(), max(next, time.Millisecond)))
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if err := ctx.Err(); err != nil {
			stop()
			return driver.Grant{}, o.withdrawn(ctx, &driver.Error{Code: driver.CodeWithdrawn, Err: err})
		}
	}
}

// bound ends a call with the store.
func (o *Optimistic) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(o.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// ended gives an error the meaning that the end of a call's context has.
func (o *Optimistic) ended(ctx context.Context, err error) error {
	if err != nil && o.ctx.Err() != nil && driver.CodeOf(err) != driver.CodeUnknown {
		return ErrClosed
	}
	return err
}

// withdrawn is ended for an Acquire, of which nothing stands.
func (o *Optimistic) withdrawn(ctx context.Context, err error) error {
	if ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable && o.ctx.Err() == nil {
		return &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	return o.ended(ctx, err)
}

// look is try. A waiter's context has no end of its own, so that each of its looks has
// one: a connection that has fallen silent would else hold it for as long as TCP waits.
func (o *Optimistic) look(ctx context.Context, r driver.Request) (driver.Grant, time.Duration, error) {
	if r.Wait {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, AnswerWithin)
		defer cancel()
	}
	return o.try(ctx, r)
}

// try asks once. A BusyError comes with the time after which asking again is
// worth while whatever happens.
func (o *Optimistic) try(ctx context.Context, r driver.Request) (g driver.Grant, next time.Duration, err error) {
	type attempt struct {
		expires int64
		sent    driver.Instant
	}
	var attempts []attempt
	p := &op{name: o.key(r.Name)}
	corrected := false
	p.step = func(row *row) (*content, error) {
		if h := row.byID(r.ID); h != nil {
			g = driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: h.Token, TTL: r.TTL, Slot: h.Slot}
			for _, a := range attempts {
				if a.expires == h.Expires {
					g.SentAt = a.sent
					return nil, nil
				}
			}
			return nil, driver.Errorf(driver.CodeUnknown, "the row has another grant under the ID %s", r.ID)
		}
		if !row.admits(r.Limit) {
			if row.ahead && !corrected { // else it would never run out
				corrected = true
				return &row.content, nil
			}
			next = time.Duration(row.next()-row.now) * time.Microsecond
			return nil, &driver.BusyError{Holders: row.describe(row.now)}
		}
		p.token = max(row.token+1, row.floor+1, row.now)
		h := holder{Owner: OwnerOf(r.From.Owner(), row.now), Limit: r.Limit, Slot: driver.NoSlot,
			Token: uint64(p.token), Expires: row.now + micros(r.TTL), TTL: micros(r.TTL)}
		if r.Limit > driver.Exclusive && r.Limit <= driver.MaxLimit {
			h.Slot = row.freeSlot()
		}
		attempts = append(attempts, attempt{h.Expires, row.sent})
		return &content{Holders: append(slices.Clone(row.Holders), h), Taken: row.Taken}, nil
	}
	if err := o.apply(ctx, p); err != nil {
		return g, 0, err
	}
	return g, next, p.err
}

// micros rounds up.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// newFallback makes the pauses between two looks of a waiter that hears nothing.
func newFallback() *fallback { return &fallback{d: 50 * time.Millisecond} }

type fallback struct{ d time.Duration }

func (f *fallback) next() time.Duration {
	f.d = min(2*f.d, OptimisticFallback)
	return f.d - jitter(f.d/4)
}

// Undo makes sure that nothing of a request stands or can still appear.
func (o *Optimistic) Undo(ctx context.Context, r driver.Request) error {
	if err := o.enter(); err != nil {
		return err
	}
	defer o.tasks.Done()
	ctx, end := o.bound(ctx)
	defer end()
	version, exists, first := int64(0), false, true
	p := &op{name: o.key(r.Name), wake: true}
	p.step = func(row *row) (*content, error) {
		next := &content{Holders: slices.Clone(row.Holders), Taken: row.Taken}
		there := next.remove(func(h holder) bool { return h.ID == r.ID })
		// A version that was made after the first look is one that no write of the
		// request can replace.
		if !there && !first && (row.version != version || row.exists != exists) {
			return nil, nil
		}
		version, exists, first = row.version, row.exists, false
		return next, nil
	}
	if err := o.apply(ctx, p); err != nil {
		return o.ended(ctx, err)
	}
	if p.err == nil {
		o.forget(r.ID)
	}
	return p.err
}

// Renew sets new deadlines for grants that still stand.
func (o *Optimistic) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	fail := func(from int, err error) []driver.Renewal {
		for i := from; i < len(answers); i++ {
			answers[i] = driver.Renewal{Err: err}
		}
		return answers
	}
	if err := o.enter(); err != nil {
		return fail(0, err)
	}
	defer o.tasks.Done()
	ctx, end := o.bound(ctx)
	defer end()
	for from := 0; from < len(grants); from += batch {
		to := min(from+batch, len(grants))
		var ops []*op
		for i := from; i < to; i++ {
			ops = append(ops, o.renewal(grants[i], &answers[i]))
		}
		if err := o.apply(ctx, slices.Clone(ops)...); err != nil {
			return fail(from, o.ended(ctx, err))
		}
		for i, p := range ops {
			if p.err != nil {
				answers[from+i].Err = p.err
			}
		}
	}
	return answers
}

func (o *Optimistic) renewal(g driver.Grant, answer *driver.Renewal) *op {
	var expires int64
	return &op{name: o.key(g.Name), step: func(row *row) (*content, error) {
		h := row.byID(g.ID)
		if h == nil || h.Token != g.Token {
			answer.Cause = driver.CauseGone
			if row.wasTaken(g.Token) {
				answer.Cause = driver.CauseTaken
			}
			return nil, notHeld(g.Name, g.Token)
		}
		if expires != 0 && h.Expires == expires {
			answer.TTL = g.TTL
			return nil, nil
		}
		expires = row.now + micros(g.TTL)
		answer.SentAt = row.sent
		next := &content{Holders: slices.Clone(row.Holders), Taken: row.Taken}
		h = next.byID(g.ID)
		h.Expires, h.TTL = expires, micros(g.TTL)
		return next, nil
	}}
}

func notHeld(name string, token uint64) error {
	return driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d stands", name, token)
}

// Release ends a grant, or leaves it standing for a while without an owner.
func (o *Optimistic) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := o.enter(); err != nil {
		return err
	}
	defer o.tasks.Done()
	o.forget(g.ID) // it is no loss any more
	ctx, end := o.bound(ctx)
	defer end()
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
	err := o.apply(ctx, p)
	if err == nil {
		err = p.err
	}
	if err == nil {
		o.sweep()
	}
	return o.ended(ctx, err)
}
