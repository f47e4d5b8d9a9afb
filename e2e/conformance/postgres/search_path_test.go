package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestSearchPathLeadsToNoOtherUsersTable: another user with the right to create schemas or tables cannot give a store tables
// of their own: neither before the store is opened, nor later.
func TestSearchPathLeadsToNoOtherUsersTable(t *testing.T) {
	const shadow = "CREATE TABLE %[1]s.holdfast_row (name bytea PRIMARY KEY, bucket smallint, version bigint, token bigint, expires bigint, touched bigint, state text); " +
		"GRANT ALL ON %[1]s.holdfast_row TO PUBLIC"
	// setUp returns a database in which other statements are those of another user.
	setUp := func(t *testing.T, init bool) (url, victim string, other func(statement string)) {
		database := postgres.Bare(t)
		if init {
			database = postgres.Create(t)
		}
		victim = "victim_" + database
		attacker := "attacker_" + database
		for _, statement := range []string{
			"CREATE ROLE " + victim + " LOGIN", "CREATE ROLE " + attacker + " LOGIN",
			"GRANT CREATE ON DATABASE " + database + " TO " + attacker, "GRANT ALL ON SCHEMA public TO PUBLIC",
		} {
			postgres.Exec(t, database, statement)
		}
		if init {
			postgres.Exec(t, database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+victim)
		}
		url = strings.Replace(postgres.URL(postgres.Server(t).Address, database, "recipe=optimistic"), "postgres@", victim+"@", 1)
		return url, victim, func(statement string) {
			db := postgres.PoolAt(t, postgres.Server(t).Address, database)
			db.SetMaxOpenConns(1)
			for part := range strings.SplitSeq("SET SESSION AUTHORIZATION "+attacker+"; "+statement, "; ") {
				if _, err := db.ExecContext(t.Context(), part); err != nil {
					t.Fatalf("%s: %v", part, err)
				}
			}
		}
	}
	refused := func(t *testing.T, url, says string) {
		s, err := postgres.Open(t.Context(), url, "")
		if err == nil {
			sqltest.Close(t, s)
		}
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), says) {
			t.Errorf("Open: %v; want refused, with %q", err, says)
		}
	}
	t.Run("schema of the user's name, before init", func(t *testing.T) {
		url, victim, other := setUp(t, false)
		other("CREATE SCHEMA " + victim + "; GRANT ALL ON SCHEMA " + victim + " TO PUBLIC; " + fmt.Sprintf(shadow, victim))
		refused(t, url, "belongs to user attacker")
		chosen := postgres.OpenURL(t, strings.Replace(url, victim+"@", "postgres@", 1)+"&schema=public")
		check(t, chosen.Init(t.Context()))
	})
	t.Run("schema of the user's name, after init", func(t *testing.T) {
		url, victim, other := setUp(t, true)
		other("CREATE SCHEMA " + victim + "; GRANT ALL ON SCHEMA " + victim + " TO PUBLIC; " + fmt.Sprintf(shadow, victim))
		_, database, _ := strings.Cut(victim, "_")
		s := postgres.OpenURL(t, url)
		g, _ := sqltest.Must(t, s, "x", driver.Exclusive, time.Minute)
		sqltest.Busy(t, postgres.Store(t, database, "recipe=optimistic&schema=public"), "x", driver.Exclusive)
		refused(t, url+"&schema="+victim, "belongs to user attacker")
		sqltest.Release(t, s, g)
	})
	t.Run("two schemas", func(t *testing.T) {
		url, victim, _ := setUp(t, true)
		_, database, _ := strings.Cut(victim, "_")
		postgres.Exec(t, database, "CREATE SCHEMA "+victim)
		postgres.Exec(t, database, "GRANT ALL ON SCHEMA "+victim+" TO PUBLIC")
		postgres.Exec(t, database, "CREATE TABLE "+victim+".holdfast_row (name bytea PRIMARY KEY)")
		refused(t, url, "schema=public")
	})
	t.Run("table before init", func(t *testing.T) {
		url, _, other := setUp(t, false)
		other(fmt.Sprintf(shadow, "public"))
		refused(t, url, "belongs to user attacker")
	})
	t.Run("later", func(t *testing.T) {
		url, victim, other := setUp(t, true)
		s := postgres.OpenURL(t, url)
		g, _ := sqltest.Must(t, s, "x", driver.Exclusive, time.Minute)
		other("CREATE SCHEMA " + victim + "; GRANT ALL ON SCHEMA " + victim + " TO PUBLIC; " + fmt.Sprintf(shadow, victim))
		if r := s.Renew(t.Context(), []driver.Grant{g})[0]; r.Err != nil {
			t.Errorf("Renew: %v", r.Err)
		}
		sqltest.Busy(t, s, "x", driver.Exclusive)
		sqltest.Release(t, s, g)
	})
}
