package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestWaiterOfOptimisticHoldsNoSnapshot: the holder builds an index concurrently, as a migration does, while another
// client waits. CREATE INDEX CONCURRENTLY waits for every older snapshot, and so forever for a waiter that has one.
// Waiters of the other recipes have one: docs/sql.md says so.
func TestWaiterOfOptimisticHoldsNoSnapshot(t *testing.T) {
	for _, recipe := range postgres.Recipes {
		t.Run(recipe, func(t *testing.T) {
			database := postgres.Create(t)
			db := postgres.Pool(t, database)
			holder, waiting := postgres.Store(t, database, "recipe="+recipe), postgres.Store(t, database, "recipe="+recipe)
			g, _ := sqltest.Must(t, holder, "migration", driver.Exclusive, time.Minute)
			r, _ := sqltest.Request("migration", driver.Exclusive, time.Minute)
			w := requests.QueueWith(t, t.Context(), waiting, r)
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE big (n int)"); err != nil {
				t.Fatal(err)
			}
			if recipe != "optimistic" {
				var has bool
				if err := db.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_xmin IS NOT NULL "+
					"AND datname = current_database() AND pid <> pg_backend_pid())").Scan(&has); err != nil || !has {
					t.Errorf("no session has a snapshot (%v): the pages say that the waiter has one", err)
				}
			} else {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := db.ExecContext(ctx, "CREATE INDEX CONCURRENTLY ON big (n)"); err != nil {
					t.Error(err)
				}
			}
			requests.Release(t, holder, g)
			requests.Release(t, waiting, w.Granted())
		})
	}
}
