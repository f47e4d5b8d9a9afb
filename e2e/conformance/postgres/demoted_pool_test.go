package postgres

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestIdleConnectionsDoNotStayWithADemotedPrimary: the primary becomes read-only behind its address, which then leads
// to another server. Idle connections to the old server remain, in the store or in the program's pool. The next
// request is granted at the new server, and does not use up one of these connections first.
func TestIdleConnectionsDoNotStayWithADemotedPrimary(t *testing.T) {
	t.Parallel()
	old, next := postgres.Another(t, postgres.Fast), postgres.Another(t, postgres.Fast)
	r, err := servers.NewProxy(old.Address)
	check(t, err)
	t.Cleanup(r.Close)
	for _, p := range []sqltest.Server{old, next} {
		s := postgres.StoreAt(t, p.Address, postgres.Home, "recipe=optimistic")
		check(t, s.Init(t.Context()))
		sqltest.Close(t, s)
	}
	db := postgres.PoolAt(t, r.Address(), postgres.Home)
	db.SetMaxIdleConns(idleInPool)
	overSQL, err := postgres.New(t.Context(), db, "optimistic")
	check(t, err)
	defer sqltest.Close(t, overSQL)
	pool, err := pgxpool.New(t.Context(), postgres.DSN(r.Address(), postgres.Home))
	check(t, err)
	defer pool.Close()
	overPgx, err := store(pgstore.NewPool(t.Context(), pool, pgstore.With(pgstore.Optimistic)))
	check(t, err)
	defer sqltest.Close(t, overPgx)
	stores := map[string]sqltest.Store{
		"URL": postgres.StoreAt(t, r.Address(), postgres.Home, "recipe=optimistic"), "sql.DB": overSQL, "pgxpool": overPgx,
	}
	for kind, s := range stores {
		g, _ := sqltest.Must(t, s, kind, driver.Exclusive, time.Minute)
		sqltest.Release(t, s, g)
	}
	fill(t, db.Conn, (*sql.Conn).Close)
	fill(t, pool.Acquire, func(c *pgxpool.Conn) error { c.Release(); return nil })

	makeReadOnly(t, old)
	r.Lead(next.Address)
	there := postgres.StoreAt(t, next.Address, postgres.Home, "recipe=optimistic")
	for kind, s := range stores {
		g, _ := sqltest.Must(t, s, kind, driver.Exclusive, time.Minute)
		sqltest.Busy(t, there, kind, driver.Exclusive)
		sqltest.Release(t, s, g)
	}
}

// TestValuesLeaveADemotedPrimary: the primary becomes read-only behind its address, which then leads to another server.
// Sessions at the old server remain. Get reads the value of the new server, and Put writes there, although neither
// has noticed the change before.
func TestValuesLeaveADemotedPrimary(t *testing.T) {
	t.Parallel()
	old, next := postgres.Another(t, postgres.Fast), postgres.Another(t, postgres.Fast)
	r, err := servers.NewProxy(old.Address)
	check(t, err)
	t.Cleanup(r.Close)
	for i, p := range []sqltest.Server{old, next} {
		s := postgres.StoreAt(t, p.Address, postgres.Home, "recipe=optimistic")
		check(t, s.Init(t.Context()))
		_, err := s.Put(t.Context(), "which", []byte{byte(i)}, "")
		check(t, err)
	}
	stores := map[string][]sqltest.Store{} // of each kind, one to get and one to put
	for range 2 {
		for _, recipe := range postgres.Recipes {
			db := postgres.PoolAt(t, r.Address(), postgres.Home)
			db.SetMaxIdleConns(idleInPool)
			overSQL, err := postgres.New(t.Context(), db, recipe)
			check(t, err)
			pool, err := pgxpool.New(t.Context(), postgres.DSN(r.Address(), postgres.Home))
			check(t, err)
			t.Cleanup(pool.Close)
			overPgx, err := store(pgstore.NewPool(t.Context(), pool, pgstore.With(pgstore.Recipe(recipe))))
			check(t, err)
			for kind, s := range map[string]sqltest.Store{
				"URL": postgres.StoreAt(t, r.Address(), postgres.Home, "recipe="+recipe), "sql.DB": overSQL, "pgxpool": overPgx,
			} {
				stores[recipe+" "+kind] = append(stores[recipe+" "+kind], s)
				data, _, err := s.Get(t.Context(), "which")
				if err != nil || data[0] != 0 {
					t.Fatalf("%s: %v, %v; want the value of the old server", kind, data, err)
				}
			}
			fill(t, db.Conn, (*sql.Conn).Close)
			fill(t, pool.Acquire, func(c *pgxpool.Conn) error { c.Release(); return nil })
			t.Cleanup(func() { sqltest.Close(t, overSQL); sqltest.Close(t, overPgx) }) // before the pools
		}
	}

	makeReadOnly(t, old)
	r.Lead(next.Address)
	there := postgres.StoreAt(t, next.Address, postgres.Home, "recipe=optimistic")
	for kind, of := range stores {
		if data, _, err := of[0].Get(t.Context(), "which"); err != nil || data[0] != 1 {
			t.Errorf("%s: Get: %v, %v; want the value of the new server", kind, data, err)
		}
		if _, err := of[1].Put(t.Context(), kind, []byte("x"), ""); err != nil {
			t.Errorf("%s: Put: %v", kind, err)
		} else if data, _, err := there.Get(t.Context(), kind); string(data) != "x" {
			t.Errorf("%s: the new server has %q, %v", kind, data, err)
		}
	}
}

// makeReadOnly makes a server read-only, also for its sessions.
func makeReadOnly(t *testing.T, s sqltest.Server) {
	t.Helper()
	for _, statement := range []string{"ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"} {
		if _, err := postgres.PoolAt(t, s.Address, postgres.Home).ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	// When a new session has the setting, the server has sent its signal to the others.
	if !sqltest.Soon(func() (on bool) {
		db := postgres.PoolAt(t, s.Address, postgres.Home)
		check(t, db.QueryRowContext(t.Context(), "SELECT current_setting('transaction_read_only') = 'on'").Scan(&on))
		check(t, db.Close())
		return on
	}) {
		t.Fatal("the server does not become read-only")
	}
}

// idleInPool is how many idle connections the pools of a test have.
const idleInPool = 4

// fill opens idleInPool connections of a pool, and leaves them idle.
func fill[C any](t *testing.T, open func(context.Context) (C, error), giveBack func(C) error) {
	t.Helper()
	var all []C
	for range idleInPool {
		c, err := open(t.Context())
		check(t, err)
		all = append(all, c)
	}
	for _, c := range all {
		check(t, giveBack(c))
	}
}
