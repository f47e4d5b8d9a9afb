package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestPgxPool: over a pool of pgx's a lock ends with its connection, which the pool
// does not get back with what was set in it or holds.
func TestPgxPool(t *testing.T) {
	database := schema(t)
	for _, recipe := range pgstore.Recipes() {
		t.Run(string(recipe), func(t *testing.T) {
			pool, err := pgxpool.New(t.Context(), postgres(t).URL(database, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			other := open(t, postgres(t).Address, database, "recipe="+string(recipe))
			defer closeStore(t, other)
			s, err := pgstore.NewPool(t.Context(), pool, pgstore.With(recipe))
			if err != nil {
				t.Fatal(err)
			}
			clean := func() {
				t.Helper()
				var timeout, name string
				if err := pool.QueryRow(t.Context(), "SELECT current_setting('idle_session_timeout'), current_setting('application_name')").Scan(&timeout, &name); err != nil {
					t.Fatal(err)
				}
				if timeout != "0" || name != "" {
					t.Errorf("a connection of the pool has a timeout of %s and the name %q", timeout, name)
				}
			}
			g, a := must(t, s, "pgxpool", driver.Exclusive, time.Minute)
			busy(t, other, "pgxpool", driver.Exclusive)
			busy(t, s, "pgxpool", driver.Exclusive)
			if recipe != pgstore.Optimistic {
				terminate(t, plain(t, database), s, g)
				hear(t, a, 20*time.Second)
			}
			_ = s.Release(t.Context(), g, 0)
			g, _ = must(t, s, "pgxpool", driver.Exclusive, time.Minute)
			release(t, s, g)
			clean()

			ttl := time.Minute
			if recipe == pgstore.Optimistic {
				ttl = time.Second // it ends by that alone
			}
			must(t, s, "pgxpool", driver.Exclusive, ttl)
			closeStore(t, s)
			clean()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			r, _ := request("pgxpool", driver.Exclusive, time.Minute)
			r.Wait = true
			g, err = other.Acquire(ctx, r)
			if err != nil {
				t.Fatalf("after the store was closed: %v", err)
			}
			release(t, other, g)
			if n := pool.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections are not given back", n)
			}
		})
	}
}
