package mysql

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestEvictTooLate: who means to kill a session for what it holds, and comes too late,
// does not kill it for what it would hold next. A session that nobody means to kill is
// used again.
func TestEvictTooLate(t *testing.T) {
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
		s := mariadb.Store(t, schema, params)
		defer sqltest.Close(t, s)
		db := mariadb.Pool(t, schema)
		take := func(name string) (g driver.Grant, conn int64) {
			t.Helper()
			g, _ = sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
			if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil { // it is written down
				t.Fatal(r[0].Err)
			}
			if err := db.QueryRow(fmt.Sprintf(mariadb.Holder, g.Token)).Scan(&conn); err != nil {
				t.Fatal(err)
			}
			return g, conn
		}
		mark := func(g driver.Grant) int64 {
			t.Helper()
			r, err := db.Exec("UPDATE holdfast_session SET taken = 1 WHERE token = ?", g.Token) // as break begins
			if err != nil {
				t.Fatal(err)
			}
			n, _ := r.RowsAffected()
			return n
		}

		g, first := take("one")
		sqltest.Release(t, s, g)
		if mark(g) != 0 {
			t.Error("word can be left for who has let go")
		}
		g, next := take("two")
		if next != first {
			t.Errorf("session %d after %d: it was not used again", next, first)
		}
		if mark(g) != 1 {
			t.Fatal("no word was left")
		}
		sqltest.Release(t, s, g)
		g, other := take("three")
		if other == next {
			t.Errorf("session %d is used again, and about to be killed", next)
		}

		// What cannot be erased may be read by who means to kill.
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ExecContext(t.Context(), "LOCK TABLES holdfast_session READ"); err != nil {
			t.Fatal(err)
		}
		sqltest.Release(t, s, g)
		if _, err := c.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
			t.Fatal(err)
		}
		g, last := take("four")
		if last == other {
			t.Errorf("session %d is used again, and still says what it held", other)
		}
		sqltest.Release(t, s, g)
	})
}
