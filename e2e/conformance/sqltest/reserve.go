package sqltest

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// Reserved acquires and releases a lock until a grant has several tokens. It returns this grant and
// its requester. The tokens of each grant must be above those of the grant before it.
func Reserved(t testing.TB, s driver.Store, name string, before driver.Grant) (driver.Grant, *requests.Recorder) {
	t.Helper()
	const n = 16
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		r, a := Request(name, driver.Exclusive, time.Minute)
		r.Tokens = n
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			t.Fatalf("Acquire(%q): %v", name, err)
		}
		if g.Token <= before.Last() || g.Tokens > n {
			t.Fatalf("tokens %d to %d after %d to %d", g.Token, g.Last(), before.Token, before.Last())
		}
		if g.Tokens > 1 {
			return g, a
		}
		before = g
		Release(t, s, g)
	}
	t.Fatalf("no grant has reserved tokens within %s", soon)
	return driver.Grant{}, nil
}

// tokensOfBothKindsRise requires that tokens rise while some clients of a name use durable tokens
// and others use tokens of the clock, as during an upgrade.
func tokensOfBothKindsRise(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		durable, clock := d.Store(t, database, params+"&tokens=durable"), d.Store(t, database, params)
		var last driver.Grant
		for range 10 {
			for _, s := range []Store{clock, durable} {
				g, _ := Reserved(t, s, "both", last)
				Release(t, s, g)
				last = g
			}
		}
	})
}
