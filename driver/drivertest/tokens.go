package drivertest

import (
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// tokensRise: across owners, clients that come and go, and names that are taken
// and given back, and every limit.
func tokensRise(e *env) {
	name := e.name()
	var last uint64
	for range 10 {
		s := e.open()
		for _, limit := range e.limits() {
			g := e.must(s, e.request(name, limit, long))
			if g.Token <= last {
				e.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			e.release(s, g)
		}
		if err := s.Close(e.Context()); err != nil {
			e.Fatal(err)
		}
	}

	// Side by side: unique, and above all that were granted before.
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
				e.Errorf("token %d twice, or not above %d", g.Token, last)
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
	g := e.takeExpired(b, name, driver.Exclusive)
	if g.Token <= last {
		e.Fatalf("token %d after the expired %d", g.Token, last)
	}
	e.release(b, g)
}
