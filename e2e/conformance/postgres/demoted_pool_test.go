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

	admin := postgres.PoolAt(t, old.Address, postgres.Home)
	for _, statement := range []string{"ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"} {
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if !sqltest.Soon(func() bool { // the server's processes read the setting one after the other
		var all, readOnly int
		conns := make([]*sql.Conn, idleInPool)
		for i := range conns {
			conns[i], err = db.Conn(t.Context())
			check(t, err)
			var on bool
			check(t, conns[i].QueryRowContext(t.Context(), "SELECT current_setting('transaction_read_only') = 'on'").Scan(&on))
			all++
			if on {
				readOnly++
			}
		}
		for _, c := range conns {
			check(t, c.Close())
		}
		return all == readOnly
	}) {
		t.Fatal("the server does not become read-only")
	}
	r.Lead(next.Address)
	there := postgres.StoreAt(t, next.Address, postgres.Home, "recipe=optimistic")
	for kind, s := range stores {
		g, _ := sqltest.Must(t, s, kind, driver.Exclusive, time.Minute)
		sqltest.Busy(t, there, kind, driver.Exclusive)
		sqltest.Release(t, s, g)
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
