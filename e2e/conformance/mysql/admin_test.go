package mysql

import (
	"database/sql"
	"testing"

	_ "github.com/go-sql-driver/mysql"
)

// plain is what another program has: a pool of go-sql-driver/mysql.
func plain(t testing.TB, schema string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", mariadb(t).DSN(schema, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// admin runs a statement.
func admin(t testing.TB, schema, query string, args ...any) {
	t.Helper()
	db := plain(t, schema)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}
