package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestPgxPoolGetsCleanConnections: over a pool of pgx, a lock ends with its connection. The store gives no
// connection back to the pool with a lock or with the store's settings.
func TestPgxPoolGetsCleanConnections(t *testing.T) {
	database := postgres.Create(t)
	for _, recipe := range pgstore.Recipes() {
		t.Run(string(recipe), func(t *testing.T) {
			pool, err := pgxpool.New(t.Context(), postgres.URL(postgres.Server(t).Address, database, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			other := postgres.Store(t, database, "recipe="+string(recipe))
			defer sqltest.Close(t, other)
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
			g, a := sqltest.Must(t, s, "pgxpool", driver.Exclusive, time.Minute)
			sqltest.Busy(t, other, "pgxpool", driver.Exclusive)
			sqltest.Busy(t, s, "pgxpool", driver.Exclusive)
			if recipe != pgstore.Optimistic {
				postgres.Terminate(t, postgres.Pool(t, database), s, g)
				a.AwaitLoss(t)
			}
			_ = s.Release(t.Context(), g, 0)
			g, _ = sqltest.Must(t, s, "pgxpool", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
			clean()

			ttl := time.Minute
			if recipe == pgstore.Optimistic {
				ttl = time.Second // only the TTL ends this lease
			}
			sqltest.Must(t, s, "pgxpool", driver.Exclusive, ttl)
			sqltest.Close(t, s)
			clean()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			r, _ := sqltest.Request("pgxpool", driver.Exclusive, time.Minute)
			r.Wait = true
			g, err = other.Acquire(ctx, r)
			if err != nil {
				t.Fatalf("after the store was closed: %v", err)
			}
			sqltest.Release(t, other, g)
			if !sqltest.Soon(func() bool { return pool.Stat().AcquiredConns() == 0 }) {
				t.Errorf("%d connections are not given back", pool.Stat().AcquiredConns())
			}
		})
	}
}
