//go:build linux || darwin

package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

func init() {
	for _, recipe := range []string{"", "pessimistic", "optimistic", "named"} {
		locals[dashed("mariadb", recipe)] = func(ctx context.Context, _ string) (*Target, error) {
			return mariadbTarget(ctx, recipe)
		}
	}
}

// mariadb is a primary and its replica. Clients reach the present primary through a router.
// A switchover keeps established connections on the old primary.
type mariadb struct {
	*database
	router *servers.Proxy
	rights []right

	mu               sync.Mutex
	primary, replica *servers.MySQL
	lock             *tableLock
	revoked          *right
}

// right is one right on one table of the clients' user.
type right struct{ privilege, table string }

func (r right) String() string { return fmt.Sprintf("%s ON test.%s", r.privilege, r.table) }

// clientUser is the clients' user. It has exactly the rights that docs/sql.md lists; in
// particular it cannot write on a read-only server.
const clientUser = "client"

// rightsOf are the rights that a recipe needs, as docs/sql.md lists them.
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

func mariadbTarget(ctx context.Context, recipe string) (_ *Target, err error) {
	m := &mariadb{rights: rightsOf(recipe)}
	m.database = &database{server: m, driver: "mysql"}
	defer func() {
		if err != nil {
			_ = m.Close()
		}
	}()
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	storeURL := func(user, address string) string {
		return fmt.Sprintf("mysql://%s@%s/test?recipe=%s", user, address, recipe)
	}
	if err := initialise(ctx, storeURL("root", m.primary.Address)); err != nil {
		return nil, err
	}
	statements := []string{fmt.Sprintf("CREATE USER %s@'127.0.0.1'", clientUser)}
	for _, r := range m.rights {
		statements = append(statements, fmt.Sprintf("GRANT %s TO %s@'127.0.0.1'", r, clientUser))
	}
	if err := m.exec(ctx, m.primary, statements...); err != nil {
		return nil, err
	}
	if m.proxy, err = servers.NewProxy(m.router.Address()); err != nil {
		return nil, err
	}
	// Grants end with their session: when the server or the connection fails. Leases do not.
	early := recipe != "optimistic"
	faults := oneAtATime([]StoreFault{
		{Kind: "kill-server", Early: early, All: true, Begin: m.kill, End: m.restart},
		{Kind: "pause-server", Begin: m.pause, End: m.cont},
		{Kind: "promote-replica", Early: early, All: true, Begin: m.promote},
		{Kind: "revoke-right", Begin: m.revoke, End: m.grant},
		{Kind: "lock-tables", Begin: m.lockTables, End: m.unlockTables},
	})
	d := m.database
	return &Target{
		URL: storeURL(clientUser, d.proxy.Address()),
		Faults: append(faults,
			StoreFault{Kind: "cut-server", Early: early, All: true, Begin: d.disturb(func(Fault) error { d.proxy.Cut(); return nil }), End: d.heal},
			StoreFault{Kind: "silence-server", Early: early, All: true, Begin: d.disturb(func(Fault) error { return d.proxy.Silence() }), End: d.heal},
			StoreFault{Kind: "drop-server-answers", Early: early, All: true, Begin: d.disturb(func(Fault) error { return d.proxy.DropAnswers() }), End: d.heal},
			StoreFault{Kind: "delay-server", Begin: d.disturb(func(f Fault) error { return d.proxy.Delay(f.For / 4) }), End: d.heal},
			StoreFault{Kind: "kill-session", Early: early, All: true, Begin: m.killSession},
		),
		Left: m.left,
		Close: func() error {
			m.proxy.Close()
			return m.Close()
		},
	}, nil
}

// start starts both servers and the replication between them.
func (m *mariadb) start(ctx context.Context) (err error) {
	begin := func(id int) (*servers.MySQL, error) {
		// Every commit is on disk before it is acknowledged, so a killed server loses
		// nothing. docs/sql.md lists what the setting's other values lose.
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

// follow makes a server a read-only replica of another, from the position at which both have
// the same data.
func (m *mariadb) follow(ctx context.Context, replica, primary *servers.MySQL) error {
	port := primary.Address[strings.LastIndexByte(primary.Address, ':')+1:]
	return m.exec(ctx, replica, "SET GLOBAL read_only = 1", "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos",
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos", port),
		"START SLAVE")
}

// promote does a switchover without a lost commit: the primary becomes read-only, the
// replica applies all of the primary's data, and new connections go to the replica.
func (m *mariadb) promote(ctx context.Context, _ Fault) error {
	// It runs to its end, because the next fault would otherwise find two replicas.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	m.mu.Lock()
	old, next := m.primary, m.replica
	m.mu.Unlock()
	// The statement waits for running writes and keeps others from writing. A write that
	// does not end within seconds keeps the server from being demoted. A later fault tries
	// again.
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
	m.mu.Lock()
	m.primary, m.replica = next, old
	m.mu.Unlock()
	return m.follow(ctx, old, next)
}

// slaveErrors returns the errors that stopped a replica.
func (m *mariadb) slaveErrors(ctx context.Context, s *servers.MySQL) string {
	db, err := sql.Open(m.driver, s.DSN("test", ""))
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

// revoke takes one of the documented rights away, and grant gives it back.
func (m *mariadb) revoke(ctx context.Context, f Fault) error {
	r := m.rights[f.N%len(m.rights)]
	m.revoked = &r
	return m.exec(ctx, m.primary, fmt.Sprintf("REVOKE %s FROM %s@'127.0.0.1'", r, clientUser))
}

func (m *mariadb) grant(ctx context.Context, _ Fault) error {
	return m.exec(ctx, m.primary, fmt.Sprintf("GRANT %s TO %s@'127.0.0.1'", *m.revoked, clientUser))
}

// tableLock is a connection that locks tables, or waits for that.
type tableLock struct {
	db   *sql.DB
	conn int64
	done chan struct{}
}

// lockTables does what a backup or a change of the schema does: it locks two tables, one
// after the other. A client that has used the second table and then requests the first becomes the
// victim of a deadlock.
func (m *mariadb) lockTables(ctx context.Context, f Fault) error {
	statements := []string{
		"LOCK TABLES holdfast_name READ, holdfast_session WRITE",
		"LOCK TABLES holdfast_session READ, holdfast_name WRITE",
		"FLUSH TABLES holdfast_name, holdfast_session WITH READ LOCK",
		"FLUSH TABLES WITH READ LOCK",
		"LOCK TABLES holdfast_row READ, holdfast_floor WRITE",
		"LOCK TABLES holdfast_floor READ, holdfast_row WRITE",
	}
	db, err := sql.Open(m.driver, m.primary.DSN("test", ""))
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
		_, _ = c.ExecContext(context.WithoutCancel(ctx), statements[f.N%len(statements)]) // unlockTables may end it
	}()
	return nil
}

func (m *mariadb) unlockTables(ctx context.Context, _ Fault) error {
	err := m.exec(ctx, m.primary, fmt.Sprintf("KILL %d", m.lock.conn))
	<-m.lock.done
	return errors.Join(err, m.lock.db.Close())
}

// killSession ends a client's connection, as an administrator does.
func (m *mariadb) killSession(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m.mu.Lock()
	all := []*servers.MySQL{m.primary, m.replica}
	m.mu.Unlock()
	s := all[f.N%len(all)]
	ids, err := m.clients(ctx, s)
	if err == nil && len(ids) > 0 {
		_ = m.exec(ctx, s, fmt.Sprintf("KILL %d", ids[f.N/len(all)%len(ids)])) // it may have ended meanwhile
	}
	return nil // the server may be unreachable
}

// clients lists the clients' sessions at a server.
func (m *mariadb) clients(ctx context.Context, s *servers.MySQL) (ids []int64, err error) {
	var list sql.NullString
	err = m.query(ctx, s, fmt.Sprintf("SELECT GROUP_CONCAT(id ORDER BY id) FROM information_schema.processlist WHERE user = '%s'", clientUser), &list)
	for text := range strings.SplitSeq(list.String, ",") {
		var id int64
		if _, serr := fmt.Sscan(text, &id); serr == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// left lists the remaining sessions after the workers' end, without the coordinator's.
func (m *mariadb) left(ctx context.Context) ([]string, error) {
	const coordinators = 3
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		at, err := m.clients(ctx, m.primary)
		if err != nil {
			return nil, err
		}
		old, err := m.clients(ctx, m.replica)
		if err != nil {
			return nil, err
		}
		if len(at) <= coordinators && len(old) <= coordinators {
			return nil, nil
		}
		if time.Now().After(deadline) {
			return []string{fmt.Sprintf("%d sessions at the primary and %d at the replica", len(at), len(old))}, nil
		}
	}
}

// exec runs statements as the administrator on one connection that does not use the proxy.
func (m *mariadb) exec(ctx context.Context, s *servers.MySQL, statements ...string) error {
	db, err := sql.Open(m.driver, s.DSN("test", ""))
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, statement := range statements {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func (m *mariadb) query(ctx context.Context, s *servers.MySQL, query string, to any) error {
	db, err := sql.Open(m.driver, s.DSN("test", ""))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.QueryRowContext(ctx, query).Scan(to)
}

// The faults of a database apply to the primary.

func (m *mariadb) current() *servers.MySQL {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.primary
}

// Pause stops the primary.
func (m *mariadb) Pause() error { return m.current().Pause() }

// Cont continues the primary.
func (m *mariadb) Cont() error { return m.current().Cont() }

// Kill ends the primary at once.
func (m *mariadb) Kill() { m.current().Kill() }

// Restart starts it again, as the primary.
func (m *mariadb) Restart(ctx context.Context) error { return m.current().Restart(ctx) }

// Close ends both servers.
func (m *mariadb) Close() error {
	if m.router != nil {
		m.router.Close()
	}
	var err error
	for _, s := range []*servers.MySQL{m.primary, m.replica} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}
