package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
)

// Reserved acquires and releases a lock until a grant has several tokens. It returns this grant and
// its requester. The tokens of each grant must be above those of the grant before it.
func Reserved(t testing.TB, s driver.Store, name string, before driver.Grant) (driver.Grant, *Requester) {
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

// ReservedTokensAtGuard requires that a guard in the database accepts every token of a grant in
// turn. After the write of a later grant it must refuse all of them. The earlier grant ends with
// a release in the first round, and with a break in the second.
func ReservedTokensAtGuard(t *testing.T, d *Database, dialect fence.Dialect) {
	guard := fence.SQL{Dialect: dialect}
	d.eachTokens(t, func(t *testing.T, params, database string) {
		db := d.Pool(t, database)
		if err := guard.CreateTable(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		resource := t.Name()
		a, b := d.Store(t, database, params), d.Store(t, database, params)
		defer Close(t, a)
		defer Close(t, b)
		g, _ := Reserved(t, a, "guarded", driver.Grant{})
		for _, broken := range []bool{false, true} {
			for token := g.Token; token <= g.Last(); token++ {
				if err := write(t.Context(), db, guard, resource, token); err != nil {
					t.Fatalf("token %d of %d to %d: %v", token, g.Token, g.Last(), err)
				}
			}
			if broken {
				// The break names the grant by a token in the middle.
				if err := b.Break(t.Context(), "guarded", g.Token+1); err != nil {
					t.Fatalf("Break: %v", err)
				}
			} else {
				Release(t, a, g)
			}
			next, _ := Reserved(t, b, "guarded", g)
			if err := write(t.Context(), db, guard, resource, next.Token); err != nil {
				t.Fatalf("token %d of the next grant: %v", next.Token, err)
			}
			for token := g.Token; token <= g.Last(); token++ {
				if err := write(t.Context(), db, guard, resource, token); !errors.Is(err, fence.ErrStale) {
					t.Fatalf("token %d after a write with %d: %v; want stale", token, next.Token, err)
				}
			}
			a, b, g = b, a, next
		}
		Release(t, a, g)
	})
}

func write(ctx context.Context, db *sql.DB, guard fence.SQL, resource string, token uint64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := guard.Check(ctx, tx, resource, token); err != nil {
		return err
	}
	return tx.Commit()
}

// eachTokens runs a test for every recipe, and with durable tokens as well. The recipe optimistic
// runs once: its tokens are always durable.
func (d *Database) eachTokens(t *testing.T, run func(t *testing.T, params, database string)) {
	d.Each(t, d.Recipes, func(t *testing.T, params, database string) {
		t.Run("clock", func(t *testing.T) { run(t, params, database) })
		if params != "recipe=optimistic" {
			t.Run("durable", func(t *testing.T) { run(t, params+"&tokens=durable", database) })
		}
	})
}

// TokensOfBothKindsRise requires that tokens rise while some clients of a name use durable tokens
// and others use tokens of the clock, as during an upgrade.
func TokensOfBothKindsRise(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		durable, clock := d.Store(t, database, params+"&tokens=durable"), d.Store(t, database, params)
		defer Close(t, durable)
		defer Close(t, clock)
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
