package drivertest

import (
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// tokenRule is the rule, for messages about tokens.
const tokenRule = "every grant of a name has a larger token than all before it"

// tokensRise requires that tokens rise across owners, clients, every limit, and names that are
// free in between.
func tokensRise(e *env) {
	name := e.name()
	var last uint64
	for range 10 {
		s := e.open()
		for _, limit := range e.limits() {
			g := e.must(s, e.request(name, limit, long))
			if g.Token <= last {
				e.Fatalf("%q, limit %d, request %s: token %d after %d: %s", name, limit, g.ID, g.Token, last, tokenRule)
			}
			last = g.Token
			e.release(s, g)
		}
		if err := s.Close(e.Context()); err != nil {
			e.Fatalf("Close: %v", err)
		}
	}

	// Concurrent grants: unique tokens, larger than all before.
	limit := 1
	if e.g.Semaphore {
		limit = 4
	}
	seen := map[uint64]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range limit {
		s := e.open()
		wg.Go(func() {
			g := e.wait(s, e.request(name, limit, long)).granted()
			mu.Lock()
			defer mu.Unlock()
			if seen[g.Token] || g.Token <= last {
				e.Errorf("%q, limit %d, request %s: token %d was granted before, or is not above %d: %s", name, limit, g.ID, g.Token, last, tokenRule)
			}
			seen[g.Token] = true
			e.release(s, g)
		})
	}
	wg.Wait()
}

func tokensRiseAcrossExpiry(e *env) {
	e.leases()
	a, b, name := e.open(), e.open(), e.name()
	last := e.must(a, e.request(name, driver.Exclusive, e.h.TTL)).Token
	g := e.takeExpired(b, name)
	if g.Token <= last {
		e.Fatalf("%q, request %s: token %d after %d, which has expired: %s", name, g.ID, g.Token, last, tokenRule)
	}
	e.release(b, g)
}
