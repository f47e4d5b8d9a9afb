package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestGuard: the guard for pgx refuses what the one for database/sql has seen pass,
// and what was rolled back was not seen.
func TestGuard(t *testing.T) {
	database := postgres.Create(t)
	db := postgres.Pool(t, database)
	table := fence.SQL{Dialect: fence.PostgreSQL}
	if err := table.CreateTable(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), postgres.DSN(postgres.Server(t).Address, database))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	check := func(token uint64, commit bool) error {
		t.Helper()
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
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
		if err := check(step.token, step.commit); errors.Is(err, fence.ErrStale) != step.stale || err != nil && !step.stale {
			t.Errorf("token %d: %v", step.token, err)
		}
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Check(t.Context(), tx, "invoices", 5); !errors.Is(err, fence.ErrStale) {
		t.Errorf("database/sql: %v", err)
	}
	_ = tx.Rollback()
	for what, err := range map[string]error{"no token": check(0, false)} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
