//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// mysql is a primary and, for MariaDB, its replica. Clients reach the present primary
// through a router. A switchover leaves established connections on the old primary.
type mysql struct {
	database[*servers.MySQL]
	router, proxy *servers.Proxy
}

// mysqlTables returns the tables that a recipe needs beside that of values.
func mysqlTables(recipe string) []string {
	switch recipe {
	case "optimistic":
		return []string{"holdfast_row", "holdfast_floor"}
	case "named":
		return []string{"holdfast_session"}
	}
	return []string{"holdfast_name", "holdfast_slot", "holdfast_session"}
}

// newMySQL returns a database without servers. Its clients use the user with the name.
func newMySQL(name string) *mysql {
	return &mysql{database: database[*servers.MySQL]{atReplica: coordinators, dialect: dialect{
		user: name + "@'127.0.0.1'",
		sessions: "SELECT GROUP_CONCAT(id ORDER BY id) FROM information_schema.processlist" +
			" WHERE user = '" + name + "' AND id <> CONNECTION_ID()",
		end: "KILL %s",
	}}}
}

// mysqlTarget starts one MySQL server. mariadbTarget has the faults that need two servers.
func mysqlTarget(recipe string) starter {
	return func(ctx context.Context, _ string, t *Target) error {
		m := newMySQL("root")
		s, err := servers.StartMySQL(ctx, "--innodb-flush-log-at-trx-commit=1")
		if err = m.add(t, s, err); err != nil {
			return err
		}
		if s.MariaDB {
			return fmt.Errorf("check: mysqld is %w: give its directory in %s", servers.ErrNotInstalled, servers.Dirs)
		}
		if err := initialise(ctx, mysqlURL("root", s.Address, recipe)); err != nil {
			return err
		}
		return m.target(t, "root", s.Address, recipe, m.primaryFaults()...)
	}
}

func mariadbTarget(recipe string) starter {
	return func(ctx context.Context, _ string, t *Target) (err error) {
		m := newMySQL(clientUser)
		for id := range 2 {
			// With the first setting every commit is on disk before the server acknowledges it, so a
			// killed server loses nothing. docs/sql.md lists what the other values lose.
			s, err := servers.StartMariaDB(ctx, "--innodb-flush-log-at-trx-commit=1",
				"--log-bin=log", "--log-slave-updates", fmt.Sprintf("--server-id=%d", id+1))
			if err = m.add(t, s, err); err != nil {
				return err
			}
		}
		if err := m.follow(ctx, m.servers[1], m.servers[0]); err != nil {
			return err
		}
		if m.router, err = t.proxy(m.servers[0].Address); err != nil {
			return err
		}
		if err := initialise(ctx, mysqlURL("root", m.servers[0].Address, recipe)); err != nil {
			return err
		}
		if err := m.admit(ctx, mysqlTables(recipe)...); err != nil {
			return err
		}
		return m.target(t, clientUser, m.router.Address(), recipe, append(m.primaryFaults(),
			StoreFault{Kind: "promote-replica", Begin: m.promote}, m.revokeRight(), m.lockTables())...)
	}
}

// galeraTarget starts a Galera cluster of two nodes. The proxy of the clients is a balancer, which connects
// them to both nodes in turn. While a node is killed, the other one has no quorum.
func galeraTarget(ctx context.Context, _ string, t *Target) error {
	nodes, err := servers.StartGalera(ctx, 2)
	if err != nil {
		return err
	}
	m := newMySQL("root")
	for _, node := range nodes {
		_ = m.add(t, node, nil)
	}
	for _, node := range nodes {
		if err := awaitSQL(ctx, time.Minute, node, "SELECT COUNT(*) > 0 FROM information_schema.tables"); err != nil {
			return err // the node is not synced
		}
	}
	const recipe = "optimistic"
	if err := initialise(ctx, mysqlURL("root", nodes[0].Address, recipe)); err != nil {
		return err
	}
	if err := m.target(t, "root", nodes[0].Address, recipe,
		pauseFault(faultPauseServer, oneOf(nodes)), affect(faultKillServer, oneOf(nodes), kill, rejoin),
		// A node lags: it completes no change of the other node.
		heldFault("lag-server", oneOf(nodes), func(ctx context.Context, c *adminConn, _ Fault) error {
			return c.exec(ctx, "FLUSH TABLES WITH READ LOCK")
		}, nil)); err != nil {
		return err
	}
	// The nodes have one clock. With a skew, a grant whose release has no answer would stand longer than Close tries.
	t.URL += "&skew=0s"
	m.proxy.Lead(nodes[0].Address, nodes[1].Address)
	return nil
}

func rejoin(ctx context.Context, s *servers.MySQL, _ Fault) error { return s.Rejoin(ctx) }

func mysqlURL(user, address, recipe string) string {
	return fmt.Sprintf("mysql://%s@%s/test?recipe=%s", user, address, recipe)
}

// target completes a target. Its clients reach address through a proxy.
func (m *mysql) target(t *Target, user, address, recipe string, faults ...StoreFault) (err error) {
	if m.proxy, err = t.proxy(address); err != nil {
		return err
	}
	t.URL = mysqlURL(user, m.proxy.Address(), recipe)
	faults = append(faults, m.killSession(func() []*servers.MySQL { return m.servers }), m.refuseConnections())
	m.complete(t, recipe, faults, m.proxy)
	return nil
}

// follow makes a server a read-only replica of another. Both must have the same data when
// it starts.
func (m *mysql) follow(ctx context.Context, replica, primary *servers.MySQL) error {
	port := primary.Address[strings.LastIndexByte(primary.Address, ':')+1:]
	return execSQL(ctx, replica, "SET GLOBAL read_only = 1", "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos",
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root',"+
			" MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos", port),
		"START SLAVE")
}

// promote does a switchover without a lost commit: the primary becomes read-only, the
// replica applies all of the primary's data, and new connections go to the replica.
func (m *mysql) promote(ctx context.Context, _ Fault) error {
	// The switchover must complete. Otherwise the next fault would find two replicas.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	old, next := m.servers[0], m.servers[1]
	// The statement waits for running writes and keeps other writes out. If a write does
	// not end within 3 s, the server stays the primary, and a later fault tries again.
	if err := execSQL(ctx, old, "SET SESSION lock_wait_timeout = 3", "SET GLOBAL read_only = 1"); err != nil {
		return execSQL(ctx, old, "SET GLOBAL read_only = 0")
	}
	var position string
	var behind int
	if err := querySQL(ctx, old, "SELECT @@GLOBAL.gtid_binlog_pos", &position); err != nil {
		return err
	}
	if err := querySQL(ctx, next, fmt.Sprintf("SELECT MASTER_GTID_WAIT('%s', 30)", position), &behind); err != nil {
		return err
	}
	if behind != 0 {
		return fmt.Errorf("check: the replica does not follow its primary: %s", next.Output())
	}
	if err := execSQL(ctx, next, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0"); err != nil {
		return err
	}
	m.router.Lead(next.Address)
	slices.Reverse(m.servers)
	return m.follow(ctx, old, next)
}

// lockTables locks two tables, one after the other, as a backup or a change of the schema
// does. A client that has used the second table and then requests the first becomes the
// victim of a deadlock.
func (m *mysql) lockTables() StoreFault {
	var conn int64
	var done chan struct{} // nil before the statement; closed at its end
	begin := func(ctx context.Context, c *adminConn, f Fault) error {
		done = nil
		if err := c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&conn); err != nil {
			return err
		}
		statements := []string{"FLUSH TABLES WITH READ LOCK"}
		if a, b := m.tables[0], m.tables[len(m.tables)-1]; a == b {
			statements = append(statements, "LOCK TABLES "+a+" WRITE")
		} else {
			// The server first locks the table for writing, b. Holders have used a when they
			// request b.
			first := "LOCK TABLES " + a + " READ, " + b + " WRITE"
			second, flush := "LOCK TABLES "+b+" READ, "+a+" WRITE", "FLUSH TABLES "+a+", "+b+" WITH READ LOCK"
			statements = append(statements, first, first, second, first, flush)
			if a == "holdfast_name" {
				// When a client that has waited for a row gets it, the client uses another table.
				_ = awaitSQL(ctx, 2*time.Second, m.servers[0], "SELECT COUNT(*) > 0 FROM information_schema.processlist"+
					" WHERE user = '"+clientUser+"' AND time_ms > 100 AND info LIKE '%FOR UPDATE'")
			}
		}
		done = make(chan struct{})
		go func() {
			defer close(done)
			_ = c.exec(context.WithoutCancel(ctx), statements[f.N%len(statements)]) // which the end of the fault may end
		}()
		return nil
	}
	end := func(ctx context.Context, _ *adminConn) error {
		if done == nil {
			return nil // the round ended before the tables were locked
		}
		err := execSQL(ctx, m.servers[0], fmt.Sprintf("KILL %d", conn))
		<-done
		return err
	}
	return heldFault("lock-tables", present(&m.servers[0]), begin, end)
}

// refuseConnections lets the server refuse new connections. It keeps one of its own, because the server
// refuses those of an administrator, too.
func (m *mysql) refuseConnections() StoreFault {
	return heldFault(faultFull, present(&m.servers[0]), func(ctx context.Context, c *adminConn, _ Fault) error {
		return c.exec(ctx, "SET GLOBAL max_connections = 10") // the smallest value
	}, func(ctx context.Context, c *adminConn) error {
		return c.exec(ctx, "SET GLOBAL max_connections = 1000")
	})
}
