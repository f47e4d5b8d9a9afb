package mysql

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestHeldLockOpensNoReadView: the server lists the transaction of a held lock without a read view, which
// would hold back the purge of old rows. The transaction of a snapshot has a read view.
func TestHeldLockOpensNoReadView(t *testing.T) {
	server := mariadb.Another(t, mariadb.Fast)
	db := mariadb.PoolAt(t, server.Address, "test")
	snapshot, err := db.Conn(t.Context())
	check(t, err)
	defer snapshot.Close()
	s := mariadb.StoreAt(t, server.Address, "test", "recipe=pessimistic")
	check(t, s.Init(t.Context()))
	var reader int
	check(t, snapshot.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&reader))
	for _, statement := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT"} {
		if _, err := snapshot.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	g, a := sqltest.Must(t, s, "purge", driver.Exclusive, time.Minute)
	for range 2 { // pings prove the lock inside its transaction
		if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	holders := 0
	for conn, views := range readViews(t, db) {
		switch {
		case conn == reader && !views:
			t.Error("the transaction of a snapshot is shown without a read view")
		case conn != reader && views:
			t.Errorf("the transaction of connection %d has a read view", conn)
		case conn != reader:
			holders++
		}
	}
	if holders == 0 {
		t.Error("the server shows no transaction of a holder")
	}
	a.Keeps(t)
	sqltest.Release(t, s, g)
}

// readViews reports for each open transaction, by the number of its connection, whether it
// has a read view.
func readViews(t *testing.T, db *sql.DB) map[int]bool {
	t.Helper()
	var kind, name, status string
	check(t, db.QueryRowContext(t.Context(), "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status))
	views := map[int]bool{}
	for _, section := range strings.Split(status, "---TRANSACTION")[1:] {
		section, _, _ = strings.Cut(section, "\n--------\n") // the last transaction is followed by other lists
		_, thread, found := strings.Cut(section, "thread id ")
		var conn int
		if _, err := fmt.Sscanf(thread, "%d,", &conn); found && err == nil && strings.Contains(section, "ACTIVE") {
			views[conn] = strings.Contains(section, "read view")
		}
	}
	return views
}
