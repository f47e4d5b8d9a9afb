package mysql

import (
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// statusValue returns the number in the second column of the row that a query returns.
func statusValue(t testing.TB, db *sql.DB, query string) (n int) {
	t.Helper()
	var name string
	err := db.QueryRow(query).Scan(&name, &n)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestDeadlockVictimWaitsAgain: the server ends a wait to resolve a deadlock, and the waiter waits again. The
// waiter locks a row by a column that is not the primary key: first the entry in the index, then the
// row. Another transaction locks them in the other order. It has written more, so the server ends the
// waiter's statement.
func TestDeadlockVictimWaitsAgain(t *testing.T) {
	schema := mariadb.Create(t)
	mariadb.Exec(t, schema, "CREATE TABLE locks (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL, UNIQUE KEY (name)) ENGINE=InnoDB")
	mariadb.Exec(t, schema, "CREATE TABLE weight (n INT) ENGINE=InnoDB")
	mariadb.Exec(t, schema, "INSERT INTO locks (name) VALUES ('dead')")
	s := mariadb.Store(t, schema, "recipe=pessimistic&table=locks&column=name")
	db := mariadb.Pool(t, schema)
	deadlocks := "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
	if !isMariaDB(t) {
		deadlocks = "SELECT name, count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
	}
	before := statusValue(t, db, deadlocks)
	tx, err := db.Begin()
	check(t, err)
	defer tx.Rollback()
	for _, q := range []string{"INSERT INTO weight VALUES (1), (2), (3), (4), (5), (6), (7), (8)", "UPDATE locks SET id = id WHERE id = 1", "SELECT id FROM locks WHERE id = 1 FOR UPDATE"} {
		if _, err := tx.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	w := sqltest.Wait(t, t.Context(), s, "dead", driver.Exclusive)
	if _, err := tx.Exec("SELECT id FROM locks WHERE name = 'dead' FOR UPDATE"); err != nil {
		t.Fatalf("the server ended the statement of the test, not that of the waiter: %v", err)
	}
	if after := statusValue(t, db, deadlocks); after <= before {
		t.Fatal("there was no deadlock")
	}
	w.Pending()
	check(t, tx.Commit())
	sqltest.Release(t, s, w.Granted())
}

func TestPermitWaitsForOpenInsert(t *testing.T) {
	sqltest.PermitWaitsForOpenInsert(t, mariadb, "INSERT INTO holdfast_name (name) VALUES (CONCAT(CHAR(0), 'fresh'))")
}
