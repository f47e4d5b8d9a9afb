package mysql

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestLocksWorkDuringBackup: a backup blocks all writes. Holders keep their locks, and waiters are
// granted. The store records the holders after the backup.
func TestLocksWorkDuringBackup(t *testing.T) {
	for _, c := range []struct{ name, recipe, lock string }{
		{"table, named", "named", "LOCK TABLES holdfast_session READ"},
		{"table, pessimistic", "pessimistic", "LOCK TABLES holdfast_session READ"},
		{"server, named", "named", "FLUSH TABLES WITH READ LOCK"},
	} {
		t.Run(c.name, func(t *testing.T) {
			schema := mariadb.Create(t)
			s := mariadb.Store(t, schema, "recipe="+c.recipe)
			for _, name := range []string{"held", "handed off"} { // then the names have rows
				g, _ := sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
				sqltest.Release(t, s, g)
			}
			recorded, _ := sqltest.Must(t, s, "recorded", driver.Exclusive, time.Minute)
			row(t, schema, recorded)
			c2, err := mariadb.Pool(t, schema).Conn(t.Context())
			check(t, err)
			defer c2.Close()
			if _, err := c2.ExecContext(t.Context(), c.lock); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = c2.ExecContext(context.Background(), "UNLOCK TABLES") }()
			const ttl = 2 * time.Second
			g, a := sqltest.Must(t, s, "held", driver.Exclusive, ttl)
			for end := time.Now().Add(2 * ttl); time.Now().Before(end); {
				if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
			}
			a.Keeps(t)
			sqltest.Busy(t, s, "held", driver.Exclusive)
			sqltest.Release(t, s, recorded)

			first, _ := sqltest.Must(t, s, "handed off", driver.Exclusive, time.Minute)
			w := sqltest.Wait(t, t.Context(), s, "handed off", driver.Exclusive)
			sqltest.Release(t, s, first)
			sqltest.Release(t, s, w.Granted())

			if _, err := c2.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
				t.Fatal(err)
			}
			var st driver.State
			if !sqltest.Soon(func() bool {
				if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
				st, err = s.Inspect(t.Context(), "held")
				return err == nil && len(st.Holders) == 1 && st.Holders[0].Token == g.Token
			}) {
				t.Errorf("%+v, %v; want token %d", st, err, g.Token)
			}
			sqltest.Release(t, s, g)
		})
	}
}
