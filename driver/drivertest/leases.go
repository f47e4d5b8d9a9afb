package drivertest

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// renew requires that a renewed grant stands beyond its TTL.
func renew(e *env) {
	e.leases()
	a, b := e.open(), e.open()
	e.free(b, e.name()) // connects the client
	inTime := e.longer(func(ttl time.Duration) bool {
		name := e.name()
		g := e.must(a, e.request(name, driver.Exclusive, ttl))
		tick := time.NewTicker(g.TTL / 4)
		defer tick.Stop()
		for range 12 {
			<-tick.C
			if !e.renewed(a, &g) {
				return false
			}
			switch other, err := e.try(b, e.request(name, driver.Exclusive, long)); {
			case err == nil && over(g):
				e.release(b, other)
				return false
			case err == nil:
				e.Fatalf("granted %+v beside another", other)
			case b.Classify(err) != driver.CodeBusy:
				e.Fatalf("Acquire returned %v (%v), want busy", b.Classify(err), err)
			}
		}
		if err := a.Release(e.Context(), g, 0); err != nil && !over(g) {
			e.Fatalf("Release: %v", err)
		} else if err != nil {
			return false
		}
		e.free(b, name)
		return true
	})
	if !inTime {
		e.Skip("the machine was too busy to renew in time")
	}
}

// renewed renews a grant. It returns false if the grant's TTL had passed before.
func (e *env) renewed(s driver.Store, g *driver.Grant) bool {
	e.Helper()
	r := s.Renew(e.Context(), []driver.Grant{*g})
	if len(r) == 1 && r[0].Err == nil {
		g.SentAt, g.TTL = r[0].SentAt, r[0].TTL
		return true
	}
	if !over(*g) {
		e.Errorf("Renew(%q): %+v", g.Name, r)
	}
	_ = s.Release(e.Context(), *g, 0)
	return false
}

func renewBatch(e *env) {
	e.leases()
	s := e.open()
	var grants []driver.Grant
	for range 5 {
		grants = append(grants, e.must(s, e.request(e.name(), driver.Exclusive, long)))
	}
	e.release(s, grants[1])
	e.release(s, grants[3])
	answers := s.Renew(e.Context(), grants)
	if len(answers) != len(grants) {
		e.Fatalf("%d answers for %d grants", len(answers), len(grants))
	}
	for i, a := range answers {
		if i == 1 || i == 3 {
			e.code(s, a.Err, driver.CodeNotHeld, "renewing a released grant")
			continue
		}
		if a.Err != nil || a.TTL < long || a.SentAt.IsZero() {
			e.Errorf("answer %d: %+v", i, a)
		}
		e.release(s, grants[i])
	}
	if r := s.Renew(e.Context(), nil); len(r) != 0 {
		e.Errorf("answers to nothing: %+v", r)
	}
}

func renewNeverRevives(e *env) {
	e.leases()
	a, b, name := e.open(), e.open(), e.name()
	old := e.must(a, e.request(name, driver.Exclusive, e.h.TTL))
	now := e.takeExpired(b, name)
	r := a.Renew(e.Context(), []driver.Grant{old})
	e.code(a, r[0].Err, driver.CodeNotHeld, "renewing an expired grant")
	e.release(b, now)
	r = a.Renew(e.Context(), []driver.Grant{old})
	e.code(a, r[0].Err, driver.CodeNotHeld, "renewing an expired grant of a free name")
	e.free(b, name)
}

// renewAfterDeadline requires that a grant whose deadline has passed is not renewed, although no other
// request has claimed the name.
func renewAfterDeadline(e *env) {
	e.leases()
	all := map[string]func(*env){}
	for _, limit := range e.limits() {
		all[fmt.Sprintf("limit %d", limit)] = func(e *env) {
			a, b, name := e.open(), e.open(), e.name()
			g := e.must(a, e.request(name, limit, e.h.TTL))
			if i, ok := b.(driver.Inspector); ok {
				var st driver.State
				var err error
				from, shown := time.Now(), e.g.VisibleAfter == 0
				e.eventually("the grant has expired", func() bool {
					st, err = i.Inspect(e.Context(), name)
					shown = shown || len(st.Holders) > 0 || time.Since(from) > g.TTL // the first inspection may come too late to see it
					return err == nil && shown && len(st.Holders) == 0
				}, func() string { return fmt.Sprintf("%+v, %v", st, err) })
			} else {
				time.Sleep(2 * g.TTL) // the store's deadline passes, and no event announces it
			}
			e.code(a, a.Renew(e.Context(), []driver.Grant{g})[0].Err, driver.CodeNotHeld, "renewing a grant whose deadline has passed")
			next := e.takeExpired(b, name)
			e.above(next, g)
			e.release(b, next)
		}
	}
	e.inTurns(len(all), all)
}

// expiresWithoutRenewal requires that a grant that is not renewed expires although its
// client renews another one with the same TTL.
func expiresWithoutRenewal(e *env) {
	if !e.g.LeftoversExpire {
		e.Skip("its grants stand as long as their shared session")
	}
	a, b, name := e.open(), e.open(), e.name()
	other := e.must(a, e.request(e.name(), driver.Exclusive, e.h.TTL))
	e.must(a, e.request(name, driver.Exclusive, e.h.TTL))
	var next driver.Grant
	var err error
	e.eventually("a grant without a renewal expires", func() bool {
		a.Renew(e.Context(), []driver.Grant{other})
		next, err = e.try(b, e.request(name, driver.Exclusive, long))
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	e.release(b, next)
	_ = a.Release(e.Context(), other, 0) // the grant may have expired on a slow machine
}

func releaseTwice(e *env) {
	s, name := e.open(), e.name()
	g := e.must(s, e.request(name, driver.Exclusive, long))
	e.release(s, g)
	e.code(s, s.Release(e.Context(), g, 0), driver.CodeNotHeld, "a second release")
	next := e.must(s, e.request(name, driver.Exclusive, long))
	e.code(s, s.Release(e.Context(), g, 0), driver.CodeNotHeld, "a second release beside a new grant")
	e.busy(e.open(), e.request(name, driver.Exclusive, long))
	e.release(s, next)
}

// releaseByStaleOwner requires that a holder that has lost its grant cannot end the next one.
func releaseByStaleOwner(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	var old driver.Grant
	if e.g.MaxTTL > 0 {
		old = e.must(a, e.request(name, driver.Exclusive, e.h.TTL))
	} else {
		old = e.must(a, e.request(name, driver.Exclusive, long))
		e.release(a, old)
	}
	now := e.takeExpired(b, name)
	e.code(a, a.Release(e.Context(), old, 0), driver.CodeNotHeld, "release by a stale owner")
	forged := now
	forged.Token = old.Token
	e.code(b, b.Release(e.Context(), forged, 0), driver.CodeNotHeld, "release with a stale token")
	e.busy(a, e.request(name, driver.Exclusive, long))
	e.release(b, now)
}

// linger requires that a release can keep the grant for a while, and not longer.
func linger(e *env) {
	if !e.g.Linger {
		e.Skip("the core lingers for this store")
	}
	a, b, name := e.open(), e.open(), e.name()
	g := e.must(a, e.request(name, driver.Exclusive, long))
	from := time.Now()
	must.Succeed(e, a.Release(e.Context(), g, e.h.TTL))
	e.code(a, a.Release(e.Context(), g, 0), driver.CodeNotHeld, "releasing a grant that lingers")
	if i, ok := b.(driver.Inspector); ok {
		st, err := i.Inspect(e.Context(), name)
		must.Succeed(e, err)
		if time.Since(from) < e.h.TTL && (len(st.Holders) != 1 || !st.Holders[0].Kept || st.Holders[0].Note != driver.NoteKept) {
			e.Errorf("an inspection of a grant that lingers: %+v", st)
		}
	}
	next := e.queueOrGranted(b, name)
	if stood := time.Since(from); stood < e.h.TTL*9/10 {
		e.Errorf("stood for %s after its release, want %s", stood, e.h.TTL)
	}
	e.release(b, next)
	e.free(a, name)
}

func (e *env) queueOrGranted(s driver.Store, name string) driver.Grant {
	e.Helper()
	return e.wait(s, e.request(name, driver.Exclusive, long)).granted()
}

// undo requires that Undo removes everything of an ID, whenever it is called.
func undo(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	never := e.request(name, driver.Exclusive, long)
	e.undone(a, never)

	r := e.request(name, driver.Exclusive, long)
	g := e.must(a, r)
	other := e.request(name, driver.Exclusive, long)
	e.undone(b, other) // the undo of another request changes nothing
	e.busy(b, e.request(name, driver.Exclusive, long))
	e.undone(a, r)
	e.undone(a, r)
	e.code(a, a.Release(e.Context(), g, 0), driver.CodeNotHeld, "releasing an undone grant")
	e.free(b, name)

	if e.g.Wake != driver.WakePush {
		return
	}
	g = e.must(a, e.request(name, driver.Exclusive, long))
	front := e.queue(b, e.request(name, driver.Exclusive, long))
	back := e.queue(e.open(), e.request(name, driver.Exclusive, long))
	front.cancel()
	<-front.done
	e.undone(b, front.r)
	e.release(a, g)
	e.release(back.s, back.granted())
	e.free(a, name)
}
