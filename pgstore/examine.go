package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
)

// fewConnections is less than a service with session locks usually needs.
const fewConnections = 20

// probed are the checks whose findings are also notes of the guarantees. Each setting is read only for the recipes that
// need it.
var probed = examine.Table{
	examine.Breaks("crash", "fsync on, and full_page_writes on",
		"a crash of the server's machine may forget grants and tokens, or destroy the tables",
		"set both to on", func(f examine.Facts) string {
			return strings.Trim(examine.Is("fsync", "off")(f)+", "+examine.Is("full_page_writes", "off")(f), ", ")
		}),
	examine.Note("track-activities", "track_activities on", "holders and waiters cannot be recognized, so ls, show and break "+
		"do not find them", "set track_activities to on", examine.Is("track_activities", "off")),
}

var checks = append(slices.Clip(probed),
	examine.Breaks("standby", "synchronous_standby_names that names a standby, and synchronous_commit other than local",
		"a promoted standby may not have the last grants and tokens, and grants the locks again",
		"name the standby that will be promoted in synchronous_standby_names", func(f examine.Facts) string {
			if f.Int("standbys") == 0 || f["synchronous_standby_names"] != "" && f["synchronous_commit"] != "local" {
				return ""
			}
			return fmt.Sprintf("%s standbys are connected, synchronous_standby_names is %q, and synchronous_commit is %s",
				f["standbys"], f["synchronous_standby_names"], f["synchronous_commit"])
		}),
	examine.Breaks("unlogged", "tables with a log", "after a crash of the server the table is empty: grants and tokens are "+
		"forgotten", "ALTER TABLE ... SET LOGGED", examine.Given("unlogged")),
	examine.Breaks("no-key", "the primary keys of holdfast init", "a name may have two rows, and two clients hold its lock",
		"drop the table while no lock is held, and run holdfast init", examine.Given("no-key")),
	examine.Costs("autovacuum", "autovacuum on", "old versions of rows stay in the table, so each lock takes longer",
		"set autovacuum to on, also for the table", examine.Is("autovacuum", "off")),
	examine.Costs("pooler", "the server's own address", "a pooler passes no notification on, so waiters poll",
		"give the server's own address", examine.Given("pooler")),
	examine.Costs("connections", "20 connections or more for this user", "each held lock and each waiter needs one: others "+
		"wait in their process", "raise max_connections or the limit of the user or the database, or use recipe=optimistic",
		examine.Below("connections", fewConnections)),
	examine.Note("other-sessions", "pg_read_all_stats and pg_signal_backend for operators",
		"ls and show do not recognize the sessions of other users, and break cannot end them",
		"grant both to the user of ls, show and break", examine.Given("other-sessions")),
	examine.Note("look-alike", "PostgreSQL", "the store is not tested on other servers that speak its protocol",
		"use holdfast check on it", func(f examine.Facts) string {
			if v := f["version"]; v != "" && !strings.HasPrefix(v, "PostgreSQL ") {
				return "the server is " + v
			}
			return ""
		}),
)

// writesRows reports whether grants or tokens depend on rows.
func (s *store) writesRows() bool { return s.cfg.Recipe == Optimistic || s.cfg.Durable }

// Checks implements driver.Examiner.
func (s *store) Checks() []driver.Check { return checks.Checks() }

// Examine implements driver.Examiner.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	l, err := s.dial(ctx)
	if err != nil {
		return nil, unreached(err)
	}
	defer l.Close()
	schema, err := s.locateTables(ctx, l)
	if err != nil && s.usesTables() {
		return nil, err
	}
	var names []string
	if s.writesRows() {
		names = append(names, "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "autovacuum")
	}
	if s.cfg.Recipe != Optimistic {
		names = append(names, "track_activities")
	}
	a, err := l.Run(ctx, "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('"+strings.Join(names, "', '")+"')",
		"SELECT pg_catalog.version(), pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') AND pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')",
		"SELECT count(*) FROM pg_catalog.pg_stat_replication WHERE application_name <> 'pg_basebackup'",
		`SELECT c.relname, c.relpersistence = 'u', NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid)
			FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = `+texts([]string{schema})+`)
			AND c.relname IN (`+texts(ownTables)+`) ORDER BY 1`)
	if err != nil {
		return nil, unreached(err)
	}
	f := examine.Facts{"version": a.First(1).Text(0)}
	for _, row := range a[0] {
		f[row.Text(0)] = row.Text(1)
	}
	if s.writesRows() {
		f["standbys"] = a.First(2).Text(0)
	}
	for _, row := range a[3] {
		if row.True(1) {
			f["unlogged"] += "table " + row.Text(0) + " is unlogged "
		}
		if row.True(2) {
			f["no-key"] += "table " + row.Text(0) + " has no primary key "
		}
	}
	if s.cfg.Recipe == Optimistic {
		if p, ok := l.(*pgLink); ok {
			if isDirect, err := direct(ctx, p); err == nil && !isDirect {
				f["pooler"] = "the number of the session is not that of the server"
			}
		}
	} else {
		f["connections"] = strconv.FormatInt(s.facts().connections, 10)
		if !a.First(1).True(1) {
			f["other-sessions"] = "this user is no member of pg_read_all_stats and pg_signal_backend"
		}
	}
	return checks.Find(f), nil
}
