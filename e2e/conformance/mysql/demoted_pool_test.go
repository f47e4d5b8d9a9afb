package mysql

import (
	"database/sql"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestUserPoolFollowsThePrimary: the primary becomes read-only behind its address, which then leads to another server.
// The program's pool keeps idle connections to the old server. A store over that pool grants at the new server, and so
// do its values and its inspection.
func TestUserPoolFollowsThePrimary(t *testing.T) {
	t.Parallel()
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			old, next, r := startTwo(t)
			pool := mariadb.PoolAt(t, r.Address(), mariadb.Home)
			pool.SetMaxIdleConns(idleInPool)
			s, err := mariadb.New(t.Context(), pool, recipe)
			check(t, err)
			defer sqltest.Close(t, s)
			warm, _ := sqltest.Must(t, s, "warm", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, warm)
			fill(t, pool)
			set(t, old, "SET GLOBAL read_only = 1")
			r.Lead(next.Address)
			if !sqltest.Soon(func() bool {
				q, _ := sqltest.Request("warm", driver.Exclusive, time.Minute)
				g, err := s.Acquire(t.Context(), q)
				switch {
				case err == nil:
					other := mariadb.StoreAt(t, next.Address, mariadb.Home, "recipe="+recipe)
					sqltest.Busy(t, other, "warm", driver.Exclusive)
					sqltest.Shown(t, s, g)
					sqltest.Release(t, s, g)
				case s.Classify(err) != driver.CodeRefused:
					t.Fatalf("Acquire: %v", err)
				}
				return err == nil
			}) {
				t.Error("no lock at the new primary")
			}
			if _, err := s.Put(t.Context(), "value", []byte("x"), ""); err != nil {
				t.Errorf("Put: %v", err)
			}
		})
	}
}

// idleInPool is how many idle connections the pool of a test keeps.
const idleInPool = 6

// fill opens idleInPool connections of a pool, and leaves them idle.
func fill(t *testing.T, pool *sql.DB) {
	t.Helper()
	var all []*sql.Conn
	for range idleInPool {
		c, err := pool.Conn(t.Context())
		check(t, err)
		all = append(all, c)
	}
	for _, c := range all {
		check(t, c.Close())
	}
}
