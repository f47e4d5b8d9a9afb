package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestGuardInTransactionOfCaller: a token whose transaction was rolled back does not count.
func TestGuardInTransactionOfCaller(t *testing.T) {
	database := postgres.Create(t)
	db := postgres.Pool(t, database)
	table := fence.SQL{Dialect: fence.PostgreSQL}
	check(t, table.CreateTable(t.Context(), db))
	c, err := pgx.Connect(t.Context(), postgres.DSN(postgres.Server(t).Address, database))
	check(t, err)
	defer c.Close(t.Context())
	write := func(token uint64, commit bool) error {
		t.Helper()
		tx, err := c.Begin(t.Context())
		check(t, err)
		defer tx.Rollback(t.Context())
		if err := (pgstore.Guard{}).Check(t.Context(), tx, "invoices", token); err != nil || !commit {
			return err
		}
		return tx.Commit(t.Context())
	}
	for _, step := range []struct {
		token  uint64
		commit bool
		stale  bool
	}{{5, true, false}, {5, true, false}, {9, false, false}, {6, true, false}, {5, true, true}} {
		if err := write(step.token, step.commit); errors.Is(err, fence.ErrStale) != step.stale || err != nil && !step.stale {
			t.Errorf("token %d: %v", step.token, err)
		}
	}
	for what, guard := range map[string]pgstore.Guard{"no DB": {}, "table": {DB: c, Table: "a b"}} {
		if err := guard.Raise(t.Context(), "invoices", 7); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := (pgstore.Guard{DB: c, Table: "nothing"}).Raise(t.Context(), "invoices", 7); !errors.Is(err, fence.ErrUnavailable) {
		t.Errorf("missing table: %v", err)
	}
}

// TestGuardSuite runs the suite on the guard for pgx that runs the transaction itself. The
// second guard of the suite is the one for database/sql.
func TestGuardSuite(t *testing.T) {
	database := postgres.Create(t)
	db := postgres.Pool(t, database)
	table := fence.SQL{Dialect: fence.PostgreSQL}
	check(t, table.CreateTable(t.Context(), db))
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE accounts (name text PRIMARY KEY, content text NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), postgres.DSN(postgres.Server(t).Address, database))
	check(t, err)
	defer pool.Close()
	const update = "INSERT INTO accounts VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET content = EXCLUDED.content"
	fencetest.Run(t, fencetest.Harness[fence.Func]{
		Guard: pgstore.Guard{DB: pool}, Other: table.Guard(db, nil),
		Write: func(name, content string) fence.Func {
			return func(ctx context.Context) (err error) {
				if tx := pgstore.Tx(ctx); tx != nil {
					_, err = tx.Exec(ctx, update, name, content)
				} else {
					_, err = fence.Tx(ctx).ExecContext(ctx, update, name, content)
				}
				return err
			}
		},
		Read: func(t testing.TB, name string) (content string) {
			if err := db.QueryRowContext(t.Context(), "SELECT content FROM accounts WHERE name = $1", name).Scan(&content); err != nil && !errors.Is(err, sql.ErrNoRows) {
				t.Fatal(err)
			}
			return content
		},
	})
}
