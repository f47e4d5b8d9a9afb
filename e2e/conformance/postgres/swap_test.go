package postgres

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestSwapPassesTheLockOn: where no client waits, one statement makes the next grant of the lock that the
// session has.
func TestSwapPassesTheLockOn(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		s := postgres.Store(t, database, params)
		defer sqltest.Close(t, s)
		db := postgres.Pool(t, database)
		text := map[string]string{"recipe=advisory": "pg_try_advisory_xact_lock(", "recipe=pessimistic": "AS free"}[params]
		passed := func() (n int) {
			// A swap leaves its text at the session; a release and a request leave others.
			if err := db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND strpos(query, $1) > 0", text).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for range 500 {
			g, _ := sqltest.Must(t, s, "passed", 1, time.Minute)
			next, released, err := sqltest.Swap(t, s, g)
			if released != nil || err != nil {
				t.Fatal(released, err)
			}
			n := passed()
			sqltest.Rises(t, g, next)
			sqltest.Release(t, s, next)
			if n == 1 {
				return
			}
		}
		t.Fatal("no swap has passed the lock on")
	})
}

// TestSwapNoticesEndOfSession: the server ends the sessions of a client before a swap. The release is
// denied or has an unknown outcome, and the request gets the lock anew.
func TestSwapNoticesEndOfSession(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		s := postgres.Store(t, database, params)
		defer sqltest.Close(t, s)
		db := postgres.Pool(t, database)
		sqltest.SwapUntil(t, s, "ended", func() {
			if _, err := db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
				t.Fatal(err)
			}
		}, func(released, err error) bool {
			if err != nil {
				t.Fatalf("the request: %v", err)
			}
			return released != nil
		})
	})
}
