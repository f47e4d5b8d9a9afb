package postgres

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestExamineFindsBadSettings: no check finds anything at a good server. Each setting that does harm is found, by the
// recipes to which it matters.
func TestExamineFindsBadSettings(t *testing.T) {
	server, err := servers.StartPostgres(t.Context())
	servertest.Started(t, err)
	t.Cleanup(func() { _ = server.Close() })
	url := func(user, recipe string) string {
		return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable&recipe=%s", user, server.Address, postgres.Home, recipe)
	}
	open := func(t *testing.T, url string) sqltest.Store {
		t.Helper()
		return postgres.OpenURL(t, url)
	}
	db := postgres.PoolAt(t, server.Address, postgres.Home)
	run := func(t *testing.T, statements ...string) {
		t.Helper()
		c, err := db.Conn(t.Context())
		check(t, err)
		defer c.Close()
		for _, statement := range statements {
			if _, err := c.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	check(t, open(t, url("postgres", "optimistic")).Init(t.Context()))
	for _, recipe := range postgres.Recipes {
		requests.Found(t, open(t, url("postgres", recipe)))
	}

	set := func(setting, bad string) [2]string {
		return [2]string{"ALTER SYSTEM SET " + setting + " = " + bad, "ALTER SYSTEM RESET " + setting}
	}
	run(t, "CREATE USER few CONNECTION LIMIT 5", "GRANT pg_read_all_stats, pg_signal_backend TO few", "CREATE USER plain")
	for _, c := range []struct {
		check, words, url string
		change            [2]string
		silent            string // a recipe to which the setting does not matter
	}{
		{"crash", "fsync is off", url("postgres", "optimistic"), set("fsync", "off"), "advisory"},
		{"crash", "full_page_writes is off", url("postgres", "advisory") + "&tokens=durable", set("full_page_writes", "off"), "advisory"},
		{"autovacuum", "autovacuum is off", url("postgres", "optimistic"), set("autovacuum", "off"), "pessimistic"},
		{"track-activities", "is off", url("postgres", "pessimistic"), set("track_activities", "off"), "optimistic"},
		{"connections", "connections is 5", url("few", "advisory"), [2]string{}, "optimistic"},
		{"other-sessions", "pg_signal_backend", url("plain", "advisory"), [2]string{}, "optimistic"},
		{"unlogged", "holdfast_row is unlogged", url("postgres", "optimistic"),
			[2]string{"ALTER TABLE holdfast_row SET UNLOGGED", "ALTER TABLE holdfast_row SET LOGGED"}, ""},
		{"no-key", "holdfast_row has no primary key", url("postgres", "optimistic"),
			[2]string{"ALTER TABLE holdfast_row DROP CONSTRAINT holdfast_row_pkey", "ALTER TABLE holdfast_row ADD PRIMARY KEY (name)"}, ""},
	} {
		t.Run(c.check, func(t *testing.T) {
			if c.change[0] != "" {
				run(t, c.change[0], "SELECT pg_reload_conf()")
				defer run(t, c.change[1], "SELECT pg_reload_conf()")
			}
			requests.Eventually(t, "the finding", func() bool { // the server reads its settings a moment later
				s := postgres.OpenURL(t, c.url)
				defer sqltest.Close(t, s) // the server may allow few connections
				_, found := requests.Finding(t, s, c.check)
				return found
			})
			requests.Finds(t, open(t, c.url), c.check, c.words)
			if c.silent != "" {
				requests.Found(t, open(t, url("postgres", c.silent)))
			}
		})
	}
	run(t, "SET allow_system_table_mods = on", "CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS $$SELECT 'CockroachDB 23'$$")
	requests.Finds(t, open(t, url("postgres", "optimistic")), "look-alike", "CockroachDB")
}

// TestExamineFindsStandbyAndPooler: the last grants are lost in a failover to a standby that no commit waits for, and a
// pooler passes no notification on.
func TestExamineFindsStandbyAndPooler(t *testing.T) {
	server, err := servers.StartPostgres(t.Context())
	servertest.Started(t, err)
	t.Cleanup(func() { _ = server.Close() })
	standby, err := servers.StartPostgresReplica(t.Context(), server, "cluster_name=next")
	check(t, err)
	t.Cleanup(func() { _ = standby.Close() })
	s := postgres.StoreAt(t, server.Address, postgres.Home, "recipe=optimistic")
	check(t, s.Init(t.Context()))
	requests.Eventually(t, "the standby is connected", func() bool {
		_, found := requests.Finding(t, s, "standby")
		return found
	})
	requests.Finds(t, s, "standby", "1 standbys are connected")
	db := postgres.PoolAt(t, server.Address, postgres.Home)
	for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'next'", "SELECT pg_reload_conf()"} {
		_, err := db.ExecContext(t.Context(), statement)
		check(t, err)
	}
	requests.Eventually(t, "commits wait for the standby", func() bool {
		_, found := requests.Finding(t, s, "standby")
		return !found
	})
	requests.Found(t, s)

	pooler, err := servers.StartPgBouncer(t.Context(), server.Address, "transaction", 4)
	servertest.Started(t, err)
	t.Cleanup(func() { _ = pooler.Close() })
	behind := postgres.OpenURL(t, pooler.URL(postgres.Home, "&recipe=optimistic"))
	requests.Finds(t, behind, "pooler", "number of the session")
}
