package postgres

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/pgstore"
)

func TestUserPoolNoticesLoss(t *testing.T) {
	sqltest.UserPoolNoticesLoss(t, postgres, postgres.OverSQL)
}

// TestPgxPoolGetsCleanConnections makes the test of pools over a pool of pgx.
func TestPgxPoolGetsCleanConnections(t *testing.T) {
	sqltest.UserPoolNoticesLoss(t, postgres, func(t *testing.T, database, recipe string) (sqltest.Store, *sql.DB, func() int) {
		pool, err := pgxpool.New(t.Context(), postgres.URL(postgres.Server(t).Address, database, ""))
		check(t, err)
		t.Cleanup(pool.Close)
		s, err := pgstore.NewPool(t.Context(), pool, pgstore.With(pgstore.Recipe(recipe)))
		check(t, err)
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		return s, db, func() int { return int(pool.Stat().AcquiredConns()) }
	})
}
