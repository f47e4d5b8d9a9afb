package record

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
)

// handle is what the client knows of a grant.
type handle struct {
	since time.Time // of the first grant in a sequence that Swap has replaced
	// alone is the version of the record in which the grant stood alone, "" if it did not, and read when that was read.
	alone string
	read  int64 // microseconds, by the storage's clock
}

// keep records a grant, so that its holder is notified when it is broken. heldSince is the time of the
// first grant in a sequence of grants that Swap has replaced.
func (e *engine) keep(r driver.Request, g driver.Grant, heldSince time.Time) (driver.Grant, error) {
	if e.calls.Ctx.Err() != nil {
		return g, driver.Errorf(driver.CodeUnknown, "the store was closed meanwhile")
	}
	h, _ := g.Handle.(handle)
	h.since = heldSince
	g.Handle = h
	e.held.Hold(&held.Grant{Grant: g, From: r.From})
	return g, nil
}

// checkHeld checks the grants of this client.
func (e *engine) checkHeld(all []*held.Grant) {
	if e.calls.Enter() != nil {
		return
	}
	defer e.calls.Leave()
	grouped := map[string][]*held.Grant{}
	for _, h := range all {
		grouped[h.Name] = append(grouped[h.Name], h)
	}
	byName := slices.Collect(maps.Values(grouped))
	inBatches(len(byName), func(from, to int, _ bool) bool { return e.checkNames(e.calls.Ctx, byName[from:to]) })
}

// checkNames reads the records of some names, and notifies the holders whose grants no longer exist. It
// returns false if the check failed before its timeout, so that another check may follow at once. A grant
// that expires needs no notification: its validity has ended.
func (e *engine) checkNames(ctx context.Context, byName [][]*held.Grant) bool {
	ctx, cancel := context.WithTimeout(ctx, e.o.checkInterval())
	defer cancel()
	var ops []*op
	for _, some := range byName {
		ops = append(ops, &op{key: e.key(some[0].Name), step: func(v *view) (*content, error) {
			for _, h := range some {
				if found := v.byID(h.ID); found == nil || found.Token != h.Token {
					e.held.Lose(h, v.cause(h.Token), nil)
				}
			}
			return nil, nil
		}})
	}
	e.apply(ctx, ops...)
	failed := func(p *op) bool { return driver.CodeOf(p.err) == driver.CodeUnavailable }
	return ctx.Err() != nil || !slices.ContainsFunc(ops, failed)
}
