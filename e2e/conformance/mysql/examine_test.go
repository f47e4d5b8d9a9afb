package mysql

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestExamineFindsBadSettings: no check finds anything at a good server. Each setting that does harm is found, by the
// recipes to which it matters.
func TestExamineFindsBadSettings(t *testing.T) {
	m := another(t, "--innodb-flush-log-at-trx-commit=1")
	open := func(t *testing.T, address, user, params string) sqltest.Store {
		t.Helper()
		scheme, rest, _ := strings.Cut(mariadb.URL(address, mariadb.Home, params), "://")
		_, rest, _ = strings.Cut(rest, "@")
		return mariadb.OpenURL(t, scheme+"://"+user+"@"+rest)
	}
	check(t, open(t, m.Address, "root", "recipe=optimistic").Init(t.Context()))
	for _, recipe := range mariadb.Recipes {
		requests.Found(t, open(t, m.Address, "root", "recipe="+recipe))
	}

	set(t, m, "CREATE USER plain")
	set(t, m, "GRANT ALL ON test.* TO plain")
	global := func(name, bad, good string) [2]string {
		return [2]string{"SET GLOBAL " + name + " = " + bad, "SET GLOBAL " + name + " = " + good}
	}
	for _, c := range []struct {
		check, words, user, recipe string
		change                     [2]string
		silent                     string // a recipe to which the setting does not matter
	}{
		{"flush", "innodb_flush_log_at_trx_commit is 2", "root", "optimistic", global("innodb_flush_log_at_trx_commit", "2", "1"), "named"},
		{"wait-timeout", "wait_timeout is 30", "root", "optimistic", global("wait_timeout", "30", "28800"), "named"},
		{"connections", "connections is 12", "root", "named", global("max_connections", "12", "151"), "optimistic"},
		{"other-sessions", "PROCESS", "plain", "pessimistic", [2]string{}, "optimistic"},
		{"engine", "holdfast_row has engine MyISAM", "root", "optimistic",
			[2]string{"ALTER TABLE holdfast_row ENGINE=MyISAM", "ALTER TABLE holdfast_row ENGINE=InnoDB"}, ""},
		{"no-key", "holdfast_row has no primary key", "root", "optimistic",
			[2]string{"ALTER TABLE holdfast_row DROP PRIMARY KEY", "ALTER TABLE holdfast_row ADD PRIMARY KEY (name)"}, ""},
	} {
		t.Run(c.check, func(t *testing.T) {
			if c.change[0] != "" {
				set(t, m, c.change[0])
				defer set(t, m, c.change[1])
			}
			requests.Finds(t, open(t, m.Address, c.user, "recipe="+c.recipe), c.check, c.words)
			if c.silent != "" {
				requests.Found(t, open(t, m.Address, "root", "recipe="+c.silent))
			}
		})
	}

	odd := another(t, "--sysdate-is-now", "--skip-innodb-doublewrite", "--innodb-flush-log-at-trx-commit=1")
	check(t, open(t, odd.Address, "root", "recipe=optimistic").Init(t.Context()))
	requests.Found(t, open(t, odd.Address, "root", "recipe=named"), "sysdate")
	requests.Found(t, open(t, odd.Address, "root", "recipe=optimistic"), "doublewrite")
}

// TestExamineFindsReplica: the last grants are lost in a failover to a replica that no commit waits for.
func TestExamineFindsReplica(t *testing.T) {
	flags := []string{"--log-bin=log", "--binlog-format=ROW", "--innodb-flush-log-at-trx-commit=1"}
	primary, replica := another(t, append(flags, "--server-id=1")...), another(t, append(flags, "--server-id=2")...)
	if !primary.MariaDB {
		t.Skip("the statement that begins replication is MariaDB's")
	}
	s := mariadb.StoreAt(t, primary.Address, mariadb.Home, "recipe=optimistic")
	check(t, s.Init(t.Context()))
	requests.Found(t, s)
	port := primary.Address[strings.LastIndexByte(primary.Address, ':')+1:]
	set(t, replica, "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = "+port+", MASTER_USER = 'root', MASTER_USE_GTID = slave_pos")
	set(t, replica, "START SLAVE")
	requests.Eventually(t, "the replica is connected", func() bool {
		_, found := requests.Finding(t, s, "replica")
		return found
	})
	set(t, primary, "SET GLOBAL rpl_semi_sync_master_enabled = ON")
	requests.Found(t, s)
}

// TestExamineFindsGaleraOfTwo: each of two nodes of Galera stops if the other one fails. Their settings of the disk do
// not matter, since each commit is at the other node.
func TestExamineFindsGaleraOfTwo(t *testing.T) {
	nodes, _ := galera(t)
	s := mariadb.StoreAt(t, nodes[0].Address, mariadb.Home, "recipe=optimistic")
	requests.Found(t, s, "galera-size")
}
