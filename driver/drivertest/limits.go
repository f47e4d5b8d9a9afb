package drivertest

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
)

func guaranteesAreWhole(e *env) {
	s, g := e.open(), e.g
	if g.Kind == "" || g.Scope == "" || g.Crash == "" || g.Pause == "" || g.Order == "" || g.Wake == "" ||
		g.Tokens == "" || g.Break == "" || g.Visible == "" {
		e.Errorf("a field of Guarantees is empty: %+v", g)
	}
	for _, r := range g.Rows() {
		if strings.TrimSpace(r.Value) == "" {
			e.Errorf("the row %q is empty", r.Key)
		}
	}
	if g.MinTTL > g.MaxTTL {
		e.Errorf("MinTTL %s is above MaxTTL %s", g.MinTTL, g.MaxTTL)
	}
	if g.MaxTTL == 0 && g.LeftoversExpire {
		e.Errorf("the store declares that grants expire, and has no TTL")
	}
	if g.MaxTTL == 0 && g.Crash == driver.CrashFreesAfterTTL {
		e.Error("the store declares that a crash frees after the TTL, and has no TTL")
	}
	if len(g.EarlyEnd) > 0 && g.Notice <= 0 {
		e.Error("the store declares early ends, and no notice")
	}
	if _, ok := s.(driver.Inspector); ok != (g.Visible != driver.VisibleNothing) {
		e.Errorf("inspection: declared %q, implemented %t", g.Visible, ok)
	}
	if _, ok := s.(driver.Breaker); ok != (g.Break != driver.BreakNone) {
		e.Errorf("breaking: declared %q, implemented %t", g.Break, ok)
	}
	if (g.Wanted != "") != (g.Visible == driver.VisibleAll) {
		e.Errorf("Wanted is declared as %q, and an inspection shows %s", g.Wanted, g.Visible.Describe())
	}
	if s.String() == "" {
		e.Error("String is empty")
	}
}

func exclusive(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	g := e.must(a, e.request(name, driver.Exclusive, long))
	e.busy(b, e.request(name, driver.Exclusive, long))
	e.busy(a, e.request(name, driver.Exclusive, long)) // a store is not re-entrant by itself
	e.release(a, g)
	e.release(b, e.must(b, e.request(name, driver.Exclusive, long)))
	e.free(a, name)
}

// reach requires that a client just outside of what the store declares is not excluded and sees nothing, and that one at
// the edge within is excluded and sees the holder.
func reach(e *env) {
	if e.h.Outside == nil && e.h.Within == nil {
		e.Skip("the harness opens no client at the edge of the reach")
	}
	a, name := e.open(), e.name()
	g := e.must(a, e.request(name, driver.Exclusive, long))
	if e.h.Within != nil {
		b := e.opened(e.h.Within(e.T, ""))
		e.busy(b, e.request(name, driver.Exclusive, long))
		e.shown(b, name, g.Token)
	}
	if e.h.Outside != nil {
		b := e.opened(e.h.Outside(e.T, ""))
		other := e.must(b, e.request(name, driver.Exclusive, long))
		if i, ok := b.(driver.Inspector); ok {
			e.shown(b, name, other.Token)
			if st, err := i.Inspect(e.Context(), name); err != nil || len(st.Holders) != 1 {
				e.Errorf("a client outside of the reach %q sees %+v, %v", e.g.Rows()[0].Value, st.Holders, err)
			}
		}
		e.release(b, other)
	}
	e.release(a, g)
}

// limitText is the rule, for messages about limits.
const limitText = "a grant of limit n never stands beside more than n-1 others"

// limitRule makes random acquisitions and releases of every declared limit, and checks the rule
// after each.
func limitRule(e *env) {
	if !e.g.Mixed {
		e.Skip("the store does not declare mixed limits")
	}
	stores := []driver.Store{e.open(), e.open(), e.open()}
	limits := e.limits()
	rapid.Check(e.T, func(rt *rapid.T) {
		name := e.name()
		var grants []held
		defer func() {
			for _, h := range grants {
				e.release(h.s, h.g)
			}
		}()
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			if len(grants) > 0 && rapid.IntRange(0, 2).Draw(rt, "release") == 0 {
				i := rapid.IntRange(0, len(grants)-1).Draw(rt, "which")
				e.release(grants[i].s, grants[i].g)
				grants = append(grants[:i], grants[i+1:]...)
				continue
			}
			s := rapid.SampledFrom(stores).Draw(rt, "store")
			limit := rapid.SampledFrom(limits).Draw(rt, "limit")
			least := limit
			for _, h := range grants {
				least = min(least, h.g.Limit)
			}
			r := e.request(name, limit, long)
			g, err := s.Acquire(e.Context(), r)
			switch {
			case err == nil && len(grants) >= least:
				grants = append(grants, held{s, g})
				rt.Fatalf("%q, limit %d, request %s: granted beside %d others: %s", name, limit, g.ID, len(grants)-1, limitText)
			case err == nil:
				grants = append(grants, held{s, g})
			case s.Classify(err) != driver.CodeBusy:
				rt.Fatalf("%q, limit %d, request %s: %v, want a grant or busy: a request that does not wait has no other answer", name, limit, r.ID, err)
			case len(grants) < least:
				rt.Fatalf("%q, limit %d, request %s: refused beside %d others, although the rule admits it (%s): %v", name, limit, r.ID, len(grants), limitText, err)
			}
		}
	})
}

func limitsNotDeclared(e *env) {
	s := e.open()
	for limit, declared := range map[int]bool{driver.Unlimited: e.g.Shared, 3: e.g.Semaphore} {
		if declared {
			continue
		}
		r := e.request(e.name(), limit, long)
		_, err := s.Acquire(e.Context(), r)
		e.code(s, err, driver.CodeUnsupported, fmt.Sprintf("%q, limit %d, request %s: a limit that is not declared", r.Name, limit, r.ID))
	}
}

func slots(e *env) {
	if !e.g.Slots {
		e.Skip("permits of this store have no numbers")
	}
	const n = 4
	s, name := e.open(), e.name()
	grants := map[int]driver.Grant{}
	for range n {
		g := e.must(s, e.request(name, n, long))
		if _, twice := grants[g.Slot]; twice || g.Slot < 0 || g.Slot >= n {
			e.Fatalf("%q, limit %d, request %s: slot %d beside %v: each permit has a slot of its own, from 0 to %d", name, n, g.ID, g.Slot, grants, n-1)
		}
		grants[g.Slot] = g
	}
	e.busy(s, e.request(name, n, long))
	e.release(s, grants[2])
	again := e.must(s, e.request(name, n, long))
	if again.Slot != 2 {
		e.Errorf("%q, limit %d, request %s: slot %d, but only slot 2 is free: a permit gets a free slot", name, n, again.ID, again.Slot)
	}
	grants[2] = again
	for _, g := range grants {
		e.release(s, g)
	}
	g := e.must(s, e.request(name, driver.Exclusive, long))
	if g.Slot != driver.NoSlot {
		e.Errorf("%q, limit 1, request %s: slot %d, want NoSlot: an exclusive grant has no slot", name, g.ID, g.Slot)
	}
	e.release(s, g)
}

func writersDoNotStarve(e *env) {
	if !e.g.Shared || e.g.Order != driver.OrderFIFO {
		e.Skip("the store declares no order between readers and writers")
	}
	name := e.name()
	reader, writer, late := e.open(), e.open(), e.open()
	g, last := e.must(reader, e.request(name, driver.Unlimited, long)), e.must(reader, e.request(name, driver.Unlimited, long))
	w := e.queue(writer, e.request(name, driver.Exclusive, long))
	e.busy(late, e.request(name, driver.Unlimited, long)) // otherwise readers would continue forever
	l := e.queue(late, e.request(name, driver.Unlimited, long))
	e.release(reader, g)
	e.drain(late)
	l.pendingStill() // although another reader holds the name
	e.release(reader, last)
	wg := w.granted()
	l.pendingStill()
	e.release(writer, wg)
	e.release(late, l.granted())
	e.free(reader, name)
}

func readersComeTogether(e *env) {
	if !e.g.Shared {
		e.Skip("the store has no shared locks")
	}
	name := e.name()
	writer := e.open()
	g := e.must(writer, e.request(name, driver.Exclusive, long))
	var readers []*waiting
	for range 5 {
		readers = append(readers, e.queue(e.open(), e.request(name, driver.Unlimited, long)))
	}
	e.release(writer, g)
	for _, r := range readers { // every reader is granted before one releases
		r.granted()
	}
	for _, r := range readers {
		e.release(r.s, r.g)
	}
	e.free(writer, name)
}
