package drivertest

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// everyLimitEnds requires that Undo and Break end grants of every limit, and that the holder is
// notified of a break.
func everyLimitEnds(e *env) {
	all := map[string]func(*env){}
	for _, limit := range e.limits() {
		all[fmt.Sprintf("limit %d", limit)] = func(e *env) {
			a, b, name := e.open(), e.open(), e.name()
			r := e.request(name, limit, long)
			e.must(a, r)
			e.undone(a, r)
			e.free(b, name)
			br, ok := b.(driver.Breaker)
			if !ok || e.g.Break != driver.BreakNow {
				return
			}
			r = e.request(name, limit, long)
			g := e.must(a, r)
			must.Succeed(e, br.Break(e.Context(), name, g.Token))
			await(e, from(r).lost, "the holder was not notified")
		}
	}
	e.inTurns(len(all), all)
}

// semaphoreQueue requires that permits are granted in order, and never beyond the limit.
func semaphoreQueue(e *env) {
	if !e.g.Semaphore || e.g.Order != driver.OrderFIFO {
		e.Skip("the store has no semaphores, or no order")
	}
	name := e.name()
	s := e.open()
	held := []driver.Grant{e.must(s, e.request(name, 2, long)), e.must(s, e.request(name, 2, long))}
	var q []*waiting
	for range 4 {
		q = append(q, e.queue(e.open(), e.request(name, 2, long)))
	}
	e.release(s, held[0])
	q0 := q[0].granted()
	e.busy(s, e.request(name, 2, long)) // after its answer the store has handled the release
	for _, w := range q[1:] {
		w.pendingStill()
	}
	e.release(s, held[1])
	q1 := q[1].granted()
	q[2].pendingStill()
	q[3].pendingStill()
	e.release(q[0].s, q0)
	e.release(q[1].s, q1)
	for _, w := range q[2:] {
		e.release(w.s, w.granted())
	}
}

// downConfirmsNothing requires that an unreachable store confirms no call, and that every call
// returns soon after its context ends.
func downConfirmsNothing(e *env) {
	if e.h.Stop == nil {
		e.Skip("the harness cannot stop the store")
	}
	s, name := e.open(), e.name()
	r := e.request(name, driver.Exclusive, long)
	g := e.must(s, r)
	e.h.Stop(e.T)
	call := func(what string, f func(context.Context) error) driver.Code {
		ctx, cancel := context.WithTimeout(e.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		if took := time.Since(began); took > 3*time.Second {
			e.Errorf("%s returned %s after its start, long after the end of its context", what, took)
		}
		if err == nil {
			e.Errorf("%s of a stopped store returned no error", what)
			return -1
		}
		return s.Classify(err)
	}
	late := e.request(name, driver.Exclusive, long)
	unknown := call("Acquire", func(ctx context.Context) error {
		_, err := s.Acquire(ctx, late)
		return err
	}) == driver.CodeUnknown
	for what, f := range map[string]func(context.Context) error{
		"Undo":    func(ctx context.Context) error { return s.Undo(ctx, r) },
		"Release": func(ctx context.Context) error { return s.Release(ctx, g, 0) },
		"Renew":   func(ctx context.Context) error { return s.Renew(ctx, []driver.Grant{g})[0].Err },
	} {
		if c := call(what, f); c != -1 && c != driver.CodeUnknown && c != driver.CodeUnavailable {
			e.Errorf("%s of a stopped store returns %v", what, c)
		}
	}
	e.h.Start(e.T)
	e.undone(s, r)
	if unknown {
		e.undone(s, late) // the late request may arrive after the others
	}
}

// lingerIsNotRenewed requires that a renewal after the release does not extend a grant that the
// store keeps for a while.
func lingerIsNotRenewed(e *env) {
	if !e.g.Linger {
		e.Skip("the core lingers for this store")
	}
	e.leases()
	s, name := e.open(), e.name()
	g := e.must(s, e.request(name, driver.Exclusive, long))
	must.Succeed(e, s.Release(e.Context(), g, e.h.TTL))
	e.code(s, s.Renew(e.Context(), []driver.Grant{g})[0].Err, driver.CodeNotHeld, "renewing a grant that lingers")
	e.release(s, e.takeExpired(s, name))
}
