package postgres

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
)

// plain is what another program has: a pool of database/sql.
func plain(t testing.TB, database string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", postgres(t).URL(database, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// admin runs a statement.
func admin(t testing.TB, database, query string, args ...any) {
	t.Helper()
	db := plain(t, database)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}
