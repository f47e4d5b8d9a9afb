package postgres

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestSwapHandsTheLockOff: if no client waits, one statement replaces the grant of a session by the next
// grant.
func TestSwapHandsTheLockOff(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		s := postgres.Store(t, database, params)
		db := postgres.Pool(t, database)
		text := map[string]string{"recipe=advisory": "pg_try_advisory_xact_lock(", "recipe=pessimistic": "AS free"}[params]
		passed := func() (n int) {
			// The server shows the last statement of each session. That of a swap differs
			// from those of a release and a request.
			check(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND strpos(query, $1) > 0", text).Scan(&n))
			return n
		}
		for range 500 {
			g, _ := sqltest.Must(t, s, "passed", driver.Exclusive, time.Minute)
			next, released, err := sqltest.Swap(t, s, g)
			if released != nil || err != nil {
				t.Fatal(released, err)
			}
			n := passed()
			requests.Rises(t, g, next)
			sqltest.Release(t, s, next)
			if n == 1 {
				return
			}
		}
		t.Fatal("no swap has handed the lock off")
	})
}

// TestSwapNoticesEndOfSession: the server ends the sessions of a client before a swap. The release
// returns an error or has an unknown outcome, and the request gets the lock anew.
func TestSwapNoticesEndOfSession(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		s := postgres.Store(t, database, params)
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

func TestSwapServesAdvisoryLock(t *testing.T) {
	sqltest.SwapServesStatement(t, postgres, "recipe=advisory&keys=given", "42", "SELECT pg_advisory_lock(42), pg_advisory_unlock(42)")
}

// TestSwapOfARowServesOthers: a client replaces its grant by the next one, again and again. Another client
// waits, which no row shows, and it still gets the name.
func TestSwapOfARowServesOthers(t *testing.T) {
	database := postgres.Create(t)
	s, other := postgres.Store(t, database, "recipe=optimistic"), postgres.Store(t, database, "recipe=optimistic")
	served := make(chan struct{})
	first, _ := sqltest.Must(t, s, "replaced", driver.Exclusive, time.Minute)
	w := sqltest.Wait(t, t.Context(), other, "replaced", driver.Exclusive)
	go func() {
		defer close(served)
		sqltest.Release(t, other, w.Granted())
	}()
	sqltest.Release(t, s, first)
	sqltest.SwapServesOthers(t, s, "replaced", served)
}
