package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

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

// TestGuardWithSchemaIgnoresSearchPath: a guard whose table has a schema refuses a stale token in every session. The other
// schema has such a table, too.
func TestGuardWithSchemaIgnoresSearchPath(t *testing.T) {
	database := twoSchemas(t)
	for _, schema := range []string{"public", "t7"} {
		check(t, fence.SQL{Dialect: fence.PostgreSQL, Table: schema + ".holdfast_fence"}.CreateTable(t.Context(), postgres.Pool(t, database)))
	}
	const table = "public.holdfast_fence"
	plain, left := leftWith(t, database, "SELECT 1"), leftWith(t, database, "SET search_path TO t7")
	db := stdlib.OpenDBFromPool(left)
	defer db.Close()
	check(t, pgstore.Guard{DB: plain, Table: table}.Raise(t.Context(), "x", 7))
	for what, guard := range map[string]fence.Guard[fence.Func]{
		"pgx": pgstore.Guard{DB: left, Table: table}, "database/sql": fence.SQL{Dialect: fence.PostgreSQL, Table: table}.Guard(db, nil),
	} {
		if err := guard.Raise(t.Context(), "x", 6); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: a stale token: %v", what, err)
		}
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
