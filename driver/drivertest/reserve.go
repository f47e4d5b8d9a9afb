package drivertest

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// reserving returns an exclusive request for n tokens.
func (e *env) reserving(name string, n int) driver.Request {
	r := e.request(name, driver.Exclusive, long)
	r.Tokens = n
	return r
}

// within requires that a grant has at least one of the requested tokens, and no more.
func (e *env) within(r driver.Request, g driver.Grant) driver.Grant {
	e.Helper()
	if n := max(g.Tokens, 1); n > max(r.Tokens, 1) || g.Last() >= driver.MaxToken {
		e.Errorf("%d tokens from %d on, requested %d", n, g.Token, r.Tokens)
	}
	return g
}

// above requires that all tokens of a grant are larger than those of the previous grant.
func (e *env) above(g, before driver.Grant) {
	e.Helper()
	if g.Token <= before.Last() {
		e.Fatalf("%q, request %s: token %d after %d to %d: %s", g.Name, g.ID, g.Token, before.Token, before.Last(), tokenRule)
	}
}

// reserved acquires until a grant has several tokens: a store may have fewer than requested,
// and more after a while. acquire is one try on s.
func (e *env) reserved(what string, s driver.Store, acquire func() driver.Grant) driver.Grant {
	e.Helper()
	var last driver.Grant
	for end := time.Now().Add(e.timeout()); time.Now().Before(end); {
		g := acquire()
		e.above(g, last)
		if last = g; g.Tokens > 1 {
			return g
		}
		e.release(s, g)
		time.Sleep(time.Millisecond)
	}
	e.Fatalf("%s reserves no tokens, although the store declares it", what)
	return last
}

// tokensReserved requires that reserved tokens belong to one grant alone. It tests a grant
// made at once, one after a wait, and one made by the release of the same client.
func tokensReserved(e *env) {
	a, b, name := e.open(), e.open(), e.name()
	if !e.g.Reserves {
		g := e.must(a, e.request(name, driver.Exclusive, long))
		if g.Tokens > 1 {
			e.Errorf("%d tokens, and the store does not declare that it reserves any", g.Tokens)
		}
		e.release(a, g)
		return
	}
	if g := e.must(a, e.request(name, driver.Exclusive, long)); g.Tokens > 1 {
		e.Errorf("%d tokens, and none were to be reserved", g.Tokens)
	} else {
		e.release(a, g)
	}
	g := e.reserved("a grant at once", a, func() driver.Grant {
		r := e.reserving(name, reservedTokens)
		return e.within(r, e.must(a, r))
	})
	waits := func(s driver.Store) func() driver.Grant {
		return func() driver.Grant {
			before := e.must(a, e.request(name, driver.Exclusive, long))
			r := e.reserving(name, reservedTokens)
			w := e.queue(s, r)
			e.release(a, before)
			got := e.within(r, w.granted())
			e.above(got, before)
			return got
		}
	}
	for _, s := range []driver.Store{b, a} {
		last := g
		e.release(a, g)
		g = e.reserved("a grant after a wait", s, waits(s))
		e.above(g, last)
		if s == b {
			e.release(b, g)
			g = e.must(a, e.request(name, driver.Exclusive, long))
		}
	}
	e.inspectReserved(b, g)
	if g.TTL != driver.Forever {
		if got := a.Renew(e.Context(), []driver.Grant{g})[0]; got.Err != nil {
			e.Errorf("Renew: %v", got.Err)
		}
	}
	e.release(a, g)

	if e.g.Shared {
		r := e.request(name, driver.Unlimited, long)
		r.Tokens = reservedTokens
		shared := e.must(a, r)
		if shared.Tokens > 1 {
			e.Errorf("a shared grant has %d tokens", shared.Tokens)
		}
		e.above(shared, g)
		e.release(a, shared)
	}
	e.breakReserved(a, b, name)
}

// reservedTokens is the number of tokens that the requests of tokensReserved reserve.
const reservedTokens = 16

// breakReserved requires that an operator can break a grant by the last of its tokens, and by no
// token outside the grant. The tokens of the next grant must be larger than all of them.
func (e *env) breakReserved(holder, operator driver.Store, name string) {
	e.Helper()
	var r driver.Request
	g := e.reserved("a grant at once", holder, func() driver.Grant {
		r = e.reserving(name, reservedTokens)
		return e.must(holder, r)
	})
	if br, ok := operator.(driver.Breaker); ok {
		e.code(operator, br.Break(e.Context(), name, g.Token-1), driver.CodeNotHeld, "breaking with an older token")
		e.code(operator, br.Break(e.Context(), name, g.Last()+1), driver.CodeNotHeld, "breaking with a token beyond the grant")
		broken := make(chan error, 1)
		go func() { broken <- br.Break(e.Context(), name, g.Last()) }()
		if cause := await(e, from(r).lost, "the holder was not notified"); cause != driver.CauseTaken {
			e.Errorf("the cause of the loss is %q, want %q", cause, driver.CauseTaken)
		}
		if e.g.Break == driver.BreakNotify {
			e.release(holder, g)
		}
		if err := <-broken; err != nil {
			e.Fatalf("Break: %v", err)
		}
	} else {
		e.release(holder, g)
	}
	next := e.must(operator, e.request(name, driver.Exclusive, long))
	e.above(next, g)
	e.release(operator, next)
}

// inspectReserved requires that an inspection shows the tokens of a grant.
func (e *env) inspectReserved(s driver.Store, g driver.Grant) {
	e.Helper()
	i, ok := s.(driver.Inspector)
	if !ok {
		return
	}
	e.shown(s, g.Name, g.Token)
	st, err := i.Inspect(e.Context(), g.Name)
	if err != nil || len(st.Holders) != 1 {
		e.Fatalf("Inspect: %+v, %v", st, err)
	}
	if h := st.Holders[0]; h.Token != g.Token || h.Tokens != g.Tokens {
		e.Errorf("Inspect shows %d tokens from %d on, the grant has %d from %d on", h.Tokens, h.Token, g.Tokens, g.Token)
	}
}

// reservedRangesRise requires that the tokens of grants to many clients never overlap and
// rise in the order of the grants, also beside another name. Each client requests another
// number of tokens.
func reservedRangesRise(e *env) {
	if !e.g.Reserves {
		e.Skip("the store does not reserve tokens")
	}
	const clients, each = 6, 15
	names := []string{e.name(), e.name()}
	last := make([]driver.Grant, len(names))
	var mu sync.Mutex // the grants follow one another; this is for the race detector
	var all sync.WaitGroup
	for i := range clients {
		s, which := e.open(), i%len(names)
		all.Go(func() {
			for range each {
				r := e.reserving(names[which], 1+rand.IntN(80))
				g := e.within(r, e.wait(s, r).granted())
				mu.Lock()
				if g.Token <= last[which].Last() {
					e.Errorf("%q, request %s: token %d after %d to %d: %s", g.Name, g.ID, g.Token, last[which].Token, last[which].Last(), tokenRule)
				}
				last[which] = g
				mu.Unlock()
				e.release(s, g)
			}
		})
	}
	all.Wait()

	// A request that comes within a millisecond of a grant after a wait, and requests more tokens than its server's
	// clock has microseconds since that grant.
	const many = 1000
	a, b, name := e.open(), e.open(), e.name()
	for range each {
		held := e.must(a, e.request(name, driver.Exclusive, long))
		w := e.queue(b, e.reserving(name, many))
		e.release(a, held)
		g := w.granted()
		e.release(b, g)
		next := e.must(a, e.reserving(name, many)) // this client has not seen those tokens
		e.above(next, g)
		e.release(a, next)
	}
}
