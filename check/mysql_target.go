//go:build linux || darwin

package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// mysql is a primary and, for MariaDB, its replica. Clients reach the present primary
// through a router. A switchover leaves established connections on the old primary. Only
// one fault at a time changes the fields.
type mysql struct {
	primary, replica *servers.MySQL
	router, proxy    *servers.Proxy
	user             string // the clients' user
	rights           []right
	lock             *tableLock
	revoked          *right
}

// right is one right on one table of the clients' user.
type right struct{ privilege, table string }

func (r right) String() string { return fmt.Sprintf("%s ON test.%s", r.privilege, r.table) }

// rightsOf returns the rights that a recipe needs, as docs/sql.md lists them.
func rightsOf(recipe string) (all []right) {
	add := func(table string, privileges ...string) {
		for _, p := range privileges {
			all = append(all, right{p, table})
		}
	}
	switch recipe {
	case "optimistic":
		add("holdfast_row", "SELECT", "INSERT", "UPDATE", "DELETE")
		add("holdfast_floor", "SELECT", "UPDATE")
	case "named":
		add("holdfast_session", "SELECT", "INSERT", "UPDATE", "DELETE")
	default:
		add("holdfast_name", "SELECT", "INSERT", "UPDATE")
		add("holdfast_slot", "SELECT", "INSERT", "UPDATE")
		add("holdfast_session", "SELECT", "INSERT", "UPDATE", "DELETE")
	}
	return all
}

// tablesOf returns the tables of rights, in their order.
func tablesOf(all []right) (tables []string) {
	for _, r := range all {
		tables = append(tables, r.table)
	}
	return slices.Compact(tables)
}

// mysqlTarget starts one MySQL server. mariadbTarget has the faults that need two servers.
func mysqlTarget(ctx context.Context, recipe string) (*Target, error) {
	s, err := servers.StartMySQL(ctx, "--innodb-flush-log-at-trx-commit=1")
	if err != nil {
		return nil, err
	}
	m := &mysql{primary: s, user: "root"}
	if s.MariaDB {
		return nil, errors.Join(fmt.Errorf("check: mysqld is %w: give its directory in %s", servers.ErrNotInstalled, servers.Dirs), m.close())
	}
	return m.target(ctx, recipe, s.Address)
}

func mariadbTarget(ctx context.Context, recipe string) (*Target, error) {
	m := &mysql{user: clientUser, rights: rightsOf(recipe)}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m.target(ctx, recipe, m.router.Address(),
		StoreFault{Kind: "promote-replica", Begin: m.promote},
		StoreFault{Kind: "revoke-right", Begin: m.revoke, End: m.grant},
		StoreFault{Kind: "lock-tables", Begin: m.lockTables, End: m.unlockTables})
}

// target prepares the servers for the clients, which reach address through a proxy.
func (m *mysql) target(ctx context.Context, recipe, address string, more ...StoreFault) (_ *Target, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	storeURL := func(user, address string) string {
		return fmt.Sprintf("mysql://%s@%s/test?recipe=%s", user, address, recipe)
	}
	if err := initialise(ctx, storeURL("root", m.primary.Address)); err != nil {
		return nil, err
	}
	var statements []string
	if m.user != "root" {
		statements = append(statements, fmt.Sprintf("CREATE USER %s@'127.0.0.1'", m.user))
	}
	for _, r := range m.rights {
		statements = append(statements, fmt.Sprintf("GRANT %s TO %s@'127.0.0.1'", r, m.user))
	}
	if err := m.exec(ctx, m.primary, statements...); err != nil {
		return nil, err
	}
	if m.proxy, err = servers.NewProxy(address); err != nil {
		return nil, err
	}
	faults := append(primaryFaults(func() primary { return m.primary }), StoreFault{Kind: "kill-session", Begin: m.killSession})
	return &Target{
		URL:    storeURL(m.user, m.proxy.Address()),
		Faults: sqlFaults(recipe, append(faults, more...), m.proxy),
		Left: sessionsLeft(coordinators, func(ctx context.Context) (primary, replica int, err error) {
			at, err := m.clients(ctx, m.primary)
			var old []int64
			if err == nil && m.replica != nil {
				old, err = m.clients(ctx, m.replica)
			}
			return len(at), len(old), err
		}),
		Close: m.close,
	}, nil
}

// start starts both servers and the replication between them.
func (m *mysql) start(ctx context.Context) (err error) {
	begin := func(id int) (*servers.MySQL, error) {
		// With this setting every commit is on disk before the server acknowledges it, so a
		// killed server loses nothing. docs/sql.md lists what the other values lose.
		return servers.StartMariaDB(ctx, "--innodb-flush-log-at-trx-commit=1", "--log-bin=log", "--log-slave-updates", fmt.Sprintf("--server-id=%d", id))
	}
	if m.primary, err = begin(1); err != nil {
		return err
	}
	if m.replica, err = begin(2); err != nil {
		return err
	}
	if m.router, err = servers.NewProxy(m.primary.Address); err != nil {
		return err
	}
	return m.follow(ctx, m.replica, m.primary)
}

// follow makes a server a read-only replica of another. Both must have the same data when
// it starts.
func (m *mysql) follow(ctx context.Context, replica, primary *servers.MySQL) error {
	port := primary.Address[strings.LastIndexByte(primary.Address, ':')+1:]
	return m.exec(ctx, replica, "SET GLOBAL read_only = 1", "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos",
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos", port),
		"START SLAVE")
}

// promote does a switchover without a lost commit: the primary becomes read-only, the
// replica applies all of the primary's data, and new connections go to the replica.
func (m *mysql) promote(ctx context.Context, _ Fault) error {
	// The switchover must complete. Otherwise the next fault would find two replicas.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	old, next := m.primary, m.replica
	// The statement waits for running writes and keeps other writes out. If a write does
	// not end within 3 s, the server stays the primary, and a later fault tries again.
	if err := m.exec(ctx, old, "SET SESSION lock_wait_timeout = 3", "SET GLOBAL read_only = 1"); err != nil {
		return m.exec(ctx, old, "SET GLOBAL read_only = 0")
	}
	var position string
	var behind int
	if err := m.query(ctx, old, "SELECT @@GLOBAL.gtid_binlog_pos", &position); err != nil {
		return err
	}
	if err := m.query(ctx, next, fmt.Sprintf("SELECT MASTER_GTID_WAIT('%s', 30)", position), &behind); err != nil {
		return err
	}
	if behind != 0 {
		return fmt.Errorf("check: the replica does not follow its primary: %s", m.slaveErrors(ctx, next))
	}
	if err := m.exec(ctx, next, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0"); err != nil {
		return err
	}
	m.router.Lead(next.Address)
	m.primary, m.replica = next, old
	return m.follow(ctx, old, next)
}

// slaveErrors returns the errors that stopped a replica.
func (m *mysql) slaveErrors(ctx context.Context, s *servers.MySQL) string {
	db, err := sql.Open(mysqlDriver, s.DSN("test", ""))
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "SHOW SLAVE STATUS")
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	var found []string
	columns, _ := rows.Columns()
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		to := make([]any, len(columns))
		for i := range values {
			to[i] = &values[i]
		}
		if err := rows.Scan(to...); err != nil {
			return err.Error()
		}
		for i, c := range columns {
			if strings.HasSuffix(c, "_Error") && values[i].String != "" {
				found = append(found, values[i].String)
			}
		}
	}
	return strings.Join(append(found, fmt.Sprint(rows.Err())), "; ")
}

// revoke takes one of the documented rights away. grant gives it back.
func (m *mysql) revoke(ctx context.Context, f Fault) error {
	r := m.rights[f.N%len(m.rights)]
	m.revoked = &r
	return m.exec(ctx, m.primary, fmt.Sprintf("REVOKE %s FROM %s@'127.0.0.1'", r, clientUser))
}

func (m *mysql) grant(ctx context.Context, _ Fault) error {
	return m.exec(ctx, m.primary, fmt.Sprintf("GRANT %s TO %s@'127.0.0.1'", *m.revoked, clientUser))
}

// tableLock is a connection that locks tables, or that waits for such locks.
type tableLock struct {
	db   *sql.DB
	conn int64
	done chan struct{}
}

// lockTables locks two tables, one after the other, as a backup or a change of the schema
// does. A client that has used the second table and then requests the first becomes the
// victim of a deadlock.
func (m *mysql) lockTables(ctx context.Context, f Fault) error {
	statements := []string{"FLUSH TABLES WITH READ LOCK"}
	tables := tablesOf(m.rights)
	if a, b := tables[0], tables[len(tables)-1]; a == b {
		statements = append(statements, "LOCK TABLES "+a+" WRITE")
	} else {
		// The server first locks the table for writing, b. Holders have used a when they
		// request b.
		first := "LOCK TABLES " + a + " READ, " + b + " WRITE"
		statements = append(statements, first, first, "LOCK TABLES "+b+" READ, "+a+" WRITE", first, "FLUSH TABLES "+a+", "+b+" WITH READ LOCK")
		if a == "holdfast_name" {
			m.awaitWaiter(ctx)
		}
	}
	db, err := sql.Open(mysqlDriver, m.primary.DSN("test", ""))
	if err != nil {
		return err
	}
	l := &tableLock{db: db, done: make(chan struct{})}
	c, err := db.Conn(ctx)
	if err == nil {
		err = c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&l.conn)
	}
	if err != nil {
		return errors.Join(err, db.Close())
	}
	m.lock = l
	go func() {
		defer close(l.done)
		_, _ = c.ExecContext(context.WithoutCancel(ctx), statements[f.N%len(statements)]) // unlockTables may end the statement
	}()
	return nil
}

// awaitWaiter waits, for at most 2 s, until a client has waited for a row for 100 ms. When
// this client gets the row, it uses another table.
func (m *mysql) awaitWaiter(ctx context.Context) {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
		waiting := 0
		if err := m.query(ctx, m.primary, fmt.Sprintf("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '%s' AND time_ms > 100 AND info LIKE '%%FOR UPDATE'", clientUser), &waiting); err != nil || waiting > 0 {
			return
		}
	}
}

func (m *mysql) unlockTables(ctx context.Context, _ Fault) error {
	l := m.lock
	if m.lock = nil; l == nil {
		return nil // the round ended before the tables were locked
	}
	err := m.exec(ctx, m.primary, fmt.Sprintf("KILL %d", l.conn))
	<-l.done
	return errors.Join(err, l.db.Close())
}

// killSession ends a client's connection, as an administrator does.
func (m *mysql) killSession(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	all := m.all()
	s := all[f.N%len(all)]
	ids, err := m.clients(ctx, s)
	if err == nil && len(ids) > 0 {
		_ = m.exec(ctx, s, fmt.Sprintf("KILL %d", ids[f.N/len(all)%len(ids)])) // the session may have ended meanwhile
	}
	return nil // the server may be unreachable
}

// clients lists the clients' sessions at a server.
func (m *mysql) clients(ctx context.Context, s *servers.MySQL) (ids []int64, err error) {
	var list sql.NullString
	err = m.query(ctx, s, fmt.Sprintf("SELECT GROUP_CONCAT(id ORDER BY id) FROM information_schema.processlist WHERE user = '%s' AND id <> CONNECTION_ID()", m.user), &list)
	for text := range strings.SplitSeq(list.String, ",") {
		var id int64
		if _, serr := fmt.Sscan(text, &id); serr == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// exec runs statements as the administrator, without the proxy.
func (m *mysql) exec(ctx context.Context, s *servers.MySQL, statements ...string) error {
	return execSQL(ctx, mysqlDriver, s.DSN("test", ""), statements...)
}

func (m *mysql) query(ctx context.Context, s *servers.MySQL, query string, to any) error {
	return querySQL(ctx, mysqlDriver, s.DSN("test", ""), query, to)
}

const mysqlDriver = "mysql"

// all returns the servers that were started.
func (m *mysql) all() []*servers.MySQL {
	return slices.DeleteFunc([]*servers.MySQL{m.primary, m.replica}, func(s *servers.MySQL) bool { return s == nil })
}

// close ends the servers and the proxies.
func (m *mysql) close() (err error) {
	for _, p := range []*servers.Proxy{m.proxy, m.router} {
		if p != nil {
			p.Close()
		}
	}
	for _, s := range m.all() {
		err = errors.Join(err, s.Close())
	}
	return err
}
