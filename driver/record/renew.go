package record

import (
	"context"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// Renew sets new expiry times for grants that still stand. The grants of one name are renewed by one
// write of its record.
func (e *engine) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	ctx, end, err := e.calls.Call(ctx)
	if err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	defer end()
	answers := make([]driver.Renewal, len(grants))
	renewals := e.renewals(grants, answers)
	inBatches(len(renewals), func(from, to int, last bool) bool {
		var ops []*op
		for _, r := range renewals[from:to] {
			if !r.done {
				ops = append(ops, r.op)
			}
		}
		e.apply(ctx, ops...)
		again := false
		for _, p := range ops {
			if !last && ctx.Err() == nil && driver.CodeOf(p.err) == driver.CodeUnavailable {
				p.done, again = false, true
			}
		}
		return !again
	})
	for _, r := range renewals {
		for _, i := range r.waiting {
			answers[i] = driver.Renewal{Err: e.ended(r.err)}
		}
	}
	return answers
}

// renewal is an op that renews the grants of one name.
type renewal struct {
	*op
	waiting []int // indices of grants without an answer
}

// renewals returns an op for each name. The ops set the answers.
func (e *engine) renewals(grants []driver.Grant, answers []driver.Renewal) (all []*renewal) {
	byName := map[string]*renewal{}
	skew := e.lasts(0) // it may change while renew compares expiry times
	for i, g := range grants {
		r := byName[g.Name]
		if r == nil {
			r = &renewal{op: &op{key: e.key(g.Name)}}
			var from *view // the record that the last write shall replace
			r.step = func(v *view) (next *content, err error) {
				next, r.waiting = v.renew(from, skew, grants, r.waiting, answers)
				from = v
				return next, nil
			}
			byName[g.Name], all = r, append(all, r)
		}
		r.waiting = append(r.waiting, i)
	}
	return all
}

// renew sets the answers of grants that are gone, and of grants that the last write has renewed: it
// replaced the record from. renew returns the other grants, and the content that renews them. It returns nil
// if there are none. A write of the content after one of these grants has expired would revive it.
func (v *view) renew(from *view, skew int64, grants []driver.Grant, waiting []int, answers []driver.Renewal,
) (next *content, others []int) {
	next = v.with(slices.Clone(v.Holders), "")
	byID := make(map[string]*holder, len(next.Holders))
	for i := range next.Holders {
		if h := &next.Holders[i]; !h.Left {
			byID[h.ID] = h
		}
	}
	for _, i := range waiting {
		g := grants[i]
		lasts := micros(g.TTL) + skew
		switch h := byID[g.ID]; {
		case h == nil || h.Token != g.Token:
			answers[i] = driver.Renewal{Cause: v.cause(g.Token), Err: driver.NotHeld(g.Name, g.Token)}
		case from != nil && h.Expires == from.now+lasts: // mutation: record-renewed
			answers[i] = driver.Renewal{SentAt: from.sent, TTL: g.TTL}
		default:
			if next.before == 0 || h.Expires < next.before {
				next.before = h.Expires
			}
			h.Expires, h.TTL = v.now+lasts, lasts // mutation: record-renew
			others = append(others, i)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	next.lasting = true
	return next, others
}
