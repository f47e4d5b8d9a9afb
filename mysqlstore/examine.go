package mysqlstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
)

const (
	// fewConnections is less than a service with session locks usually needs.
	fewConnections = 20
	// idleSeconds is how long the store keeps an idle connection.
	idleSeconds = 60
)

// probed are the checks whose findings are also notes of the guarantees. Each setting is read only for the recipes that
// need it.
var probed = examine.Table{
	examine.Breaks("flush", flushSetting+" 1",
		"a crash of the server's machine, and with 0 one of the server, forgets grants of the last second",
		"set "+flushSetting+" to 1", examine.IsNot(flushSetting, flushed)),
	examine.Costs("sysdate", "a server without --sysdate-is-now",
		"the time of a token is read in a statement of its own, so each lock is slower", "start it without that option",
		examine.Is("sysdate-is-now", "true")),
}

var checks = append(slices.Clip(probed),
	examine.Breaks("doublewrite", "innodb_doublewrite ON", "a crash of the server's machine may destroy the tables",
		"set innodb_doublewrite to ON", examine.Is("innodb_doublewrite", "OFF")),
	examine.Breaks("replica", "semi-synchronous replication",
		"a promoted replica may not have the last grants and tokens, and grants the locks again",
		"enable semi-synchronous replication", func(f examine.Facts) string {
			semi := f["rpl_semi_sync_master_enabled"] + f["rpl_semi_sync_source_enabled"]
			if f.Int("replicas") == 0 || strings.Contains(strings.ToUpper(semi), "ON") {
				return ""
			}
			return fmt.Sprintf("%s replicas are connected, and commits do not wait for them", f["replicas"])
		}),
	examine.Breaks("engine", "tables of engine InnoDB", "the table has no transactions and no row locks: two clients hold one "+
		"lock", "ALTER TABLE ... ENGINE=InnoDB", examine.Given("engine")),
	examine.Breaks("no-key", "the primary keys of holdfast init", "a name may have two rows, and two clients hold its lock",
		"drop the table while no lock is held, and run holdfast init", examine.Given("no-key")),
	examine.Costs("galera-size", "three nodes or more", "the loss of one node can stop all",
		"add a node, or an arbitrator (garbd)", examine.If("wsrep_on", "ON", examine.Below("wsrep_cluster_size", 3))),
	examine.Costs("wait-timeout", "wait_timeout of a minute or more", "idle connections end, and the next lock opens one",
		"raise wait_timeout", examine.Below("wait_timeout", idleSeconds)),
	examine.Costs("connections", "20 connections or more for this user", "each held lock and each waiter needs one: others "+
		"wait in their process", "raise max_connections or max_user_connections, or use recipe=optimistic",
		examine.Below("connections", fewConnections)),
	examine.Note("other-sessions", "PROCESS, and CONNECTION ADMIN or SUPER for operators",
		"ls and show omit the waiters of other users, and break cannot end their sessions",
		"grant both to the user of ls, show and break", examine.Given("other-sessions")),
)

// Checks implements driver.Examiner.
func (s *store) Checks() []driver.Check { return checks.Checks() }

// Examine implements driver.Examiner.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	l, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	known, err := s.know(ctx, l)
	if err != nil {
		return nil, err
	}
	names := []string{"wsrep_on"}
	if !s.onSessions() {
		names = append(names, "innodb_doublewrite", "wait_timeout", "rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled",
			flushSetting)
	}
	a, err := l.Run(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "', '")+"')",
		"SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_size'",
		"SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'",
		"SHOW GRANTS",
		`SELECT t.table_name, t.engine, (SELECT COUNT(*) FROM information_schema.table_constraints c WHERE c.table_schema = t.table_schema
			AND c.table_name = t.table_name AND c.constraint_type = 'PRIMARY KEY') FROM information_schema.tables t
			WHERE t.table_schema = DATABASE() AND t.table_name LIKE 'holdfast\_%' ORDER BY 1`)
	if err != nil {
		return nil, unreached(err)
	}
	f := examine.Facts{"sysdate-is-now": strconv.FormatBool(s.onSessions() && known.sysdateNow)}
	for _, row := range slices.Concat(a[0], a[1]) {
		f[row.Text(0)] = row.Text(1)
	}
	for _, row := range a[4] {
		if !strings.EqualFold(row.Text(1), "InnoDB") {
			f["engine"] += "table " + row.Text(0) + " has engine " + row.Text(1) + " "
		}
		if row.Int(2) == 0 {
			f["no-key"] += "table " + row.Text(0) + " has no primary key "
		}
	}
	if known.galera { // each commit is at the other nodes
		delete(f, flushSetting)
	}
	if !s.onSessions() {
		f["replicas"] = a.First(2).Text(0)
		return checks.Find(f), nil
	}
	f["connections"] = strconv.FormatInt(known.connections, 10)
	var grants string
	for _, row := range a[3] {
		grants += row.Text(0) + "\n"
	}
	all := strings.Contains(grants, "GRANT ALL PRIVILEGES ON *.*")
	ends := strings.Contains(grants, "CONNECTION ADMIN") || strings.Contains(grants, "CONNECTION_ADMIN") || strings.Contains(grants, "SUPER")
	if !all && !(ends && strings.Contains(grants, "PROCESS")) {
		f["other-sessions"] = "this user has not the rights PROCESS, and CONNECTION ADMIN or SUPER"
	}
	return checks.Find(f), nil
}
