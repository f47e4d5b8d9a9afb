package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// facts describe a server.
type facts struct {
	maria      bool
	sysdateNow bool // SYSDATE is the time of the statement, not of its evaluation
	galera     bool // a node of a Galera cluster
	clocks     bool // grants of one name are made at several servers, each with a clock of its own
	// connections is how many the server allows this user.
	connections int64
	notes       []string
	offset      clockOffset
}

// clockOffset is by how much a server's clock is ahead of the time since the store was opened.
type clockOffset struct {
	least, most time.Duration
	read        time.Time
}

// serverID is an expression for the identity of a server and its version.
const serverID = "CONCAT_WS(' ', @@hostname, @@port, @@server_id, VERSION() /*!50700 , @@server_uuid */)"

// connect opens a connection to a server that probe accepts. After a switchover, or behind a balancer, that
// may be another server than before.
func (s *store) connect(ctx context.Context) (sqlkit.Link, error) {
	l, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	f, err := s.know(ctx, l)
	if err != nil {
		l.Close()
		return nil, err
	}
	if f.galera && f.maria {
		return sqlkit.MapLink(l, synced), nil
	}
	return l, nil
}

// know returns the facts of the server of a connection. It probes a server that it does not know.
func (s *store) know(ctx context.Context, l sqlkit.Link) (f facts, err error) {
	sent := time.Since(s.opened)
	a, err := s.session(ctx, l)
	if err != nil {
		return f, err
	}
	id, now := a.Last().Text(0), time.Duration(a.Last().Int(1))*time.Microsecond
	f, known := s.known(id)
	if !known {
		if f, err = s.probe(ctx, l); err != nil {
			return f, err
		}
	}
	f.offset = clockOffset{now - time.Since(s.opened), now - sent, time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers[id] = f
	return f, s.checkClocks(id)
}

// session reads the server's identity and clock on a connection. It refuses a session that other code has left in
// a state in which the statements would do something else.
func (s *store) session(ctx context.Context, l sqlkit.Link) (sqlkit.Answers, error) {
	if s.dialer == nil {
		// The server refuses the statement in an open transaction. Otherwise it affects only the next query.
		if _, err := l.Run(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); isError(err, errInTransaction) {
			return nil, s.refuse("a connection of the pool has an open transaction, so that nothing would be committed: end it before the connection goes back to the pool")
		} else if err != nil {
			return nil, unreached(err)
		}
	}
	a, err := l.Run(ctx, "SELECT "+serverID+", "+clock+", DATABASE(), @@autocommit, @@sql_select_limit, ABS(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))")
	if err != nil {
		return nil, unreached(err)
	}
	r := a.Last()
	late := time.Duration(r.Int(5)) * time.Microsecond
	switch {
	case r != nil && !r.True(3):
		return nil, s.refuse("the connections have autocommit off, so that nothing would be committed: leave it on")
	case r == nil || r.Text(4) != allRows:
		return nil, s.refuse("a connection has sql_select_limit=%s, so that queries would omit rows: leave it at the default", r.Text(4))
	case late > time.Minute:
		return nil, s.refuse("the time of a connection differs from the server's clock by %s: SET timestamp = DEFAULT", late)
	case late > time.Second: // a busy server may have paused meanwhile
		return nil, driver.Errorf(driver.CodeUnavailable, "mysqlstore: the time of a connection differs from the server's clock by %s", late)
	}
	return a, s.checkSchema(r.Text(2))
}

// allRows is the default of sql_select_limit.
const allRows = "18446744073709551615"

// checkSchema returns an error if the default schema of a connection is another one than that of [InSchema], or of the
// first connection. Other code may have changed it on a user's pool. The tables of another schema have other locks.
func (s *store) checkSchema(schema string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.schema == "" {
		s.schema = schema
	}
	if s.schema != schema {
		return s.refuse("a connection of the pool has the default schema %q instead of %q: "+
			"locks in another schema exclude nobody here", schema, s.schema)
	}
	return nil
}

func (s *store) known(id string) (f facts, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok = s.servers[id]
	return f, ok
}

// checkClocks returns an error if the clock of a server and that of another one differ by more than the
// declared skew. It compares clocks that were read in the last minute. The caller holds mu.
func (s *store) checkClocks(id string) error {
	f := s.servers[id]
	if !f.clocks {
		return nil
	}
	for other, o := range s.servers {
		apart := max(f.offset.least-o.offset.most, o.offset.least-f.offset.most)
		if o.clocks && apart > s.cfg.skew && time.Since(o.offset.read) < time.Minute {
			return s.refuse("the clocks of the servers %q and %q differ by %s, and skew=%s is declared: "+
				"with larger differences two clients may hold one lock. Correct the clocks, or declare a larger skew",
				id, other, apart.Round(time.Millisecond), s.cfg.skew)
		}
	}
	return nil
}

// skew returns by how much the clocks of the servers may differ.
func (s *store) skew() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.servers {
		if f.clocks {
			return s.cfg.skew
		}
	}
	return 0
}

// at returns the facts of the server that has a session.
func (r sessions) at(s *sqlkit.Session) facts {
	f, _ := r.s.known(s.ID.Server)
	return f
}

// synced makes a query wait until the node of a Galera cluster has every change that another node has completed
// before. Otherwise a node that lags would show a grant as missing. An UPDATE needs no such wait: one that finds
// no row is followed by a query, or preceded by one in its script.
func synced(statement string) string {
	if strings.HasPrefix(statement, "SELECT ") && statement != rowCount {
		return "SET STATEMENT wsrep_sync_wait = 1 FOR " + statement
	}
	return statement
}

// onSessions reports whether the recipe keeps its locks in sessions.
func (s *store) onSessions() bool { return s.cfg.Recipe != Optimistic }

// refuse returns the error of a server on which the recipe would not be safe.
func (s *store) refuse(format string, args ...any) error {
	return driver.Errorf(driver.CodeRefused, "mysqlstore: recipe "+string(s.cfg.Recipe)+": "+format, args...)
}

// probe reads the facts of a server, and refuses one on which the recipe would not be safe.
func (s *store) probe(ctx context.Context, l sqlkit.Link) (f facts, err error) {
	const (
		version = iota
		readOnly
		innodbReadOnly
		clockBefore
		_ // of SLEEP
		clockAfter
		flushing
		maxConnections
		maxOfUser // 0 without a limit
	)
	a, err := l.Run(ctx, "SELECT VERSION(), @@global.read_only, @@innodb_read_only, SYSDATE(6), SLEEP(0.002), SYSDATE(6), "+flush+
		", @@max_connections, @@max_user_connections")
	if err != nil {
		return f, unreached(err)
	}
	r := a.Last()
	f.maria = strings.Contains(strings.ToLower(r.Text(version)), "mariadb")
	f.connections = r.Int(maxConnections)
	if n := r.Int(maxOfUser); n > 0 {
		f.connections = min(f.connections, n)
	}
	f.sysdateNow = r.Text(clockBefore) == r.Text(clockAfter)
	switch {
	case isReadOnly(r.Text(readOnly)) || r.True(innodbReadOnly):
		return f, fmt.Errorf("mysqlstore: recipe %s: %w", s.cfg.Recipe, sqlkit.ErrReadOnly)
	case s.cfg.Durable && r.Text(flushing) != flushed:
		return f, notDurable(r.Text(flushing))
	}
	if err := s.checkReplication(ctx, l, &f); err != nil {
		return f, err
	}
	if err := s.refuseProxy(ctx, l); err != nil {
		return f, err
	}
	if s.cfg.Table != "" {
		if err := s.refuseTable(ctx, l); err != nil {
			return f, err
		}
	}
	settings := examine.Facts{}
	if s.onSessions() {
		settings["sysdate-is-now"] = strconv.FormatBool(f.sysdateNow)
	} else {
		settings[flushSetting] = r.Text(flushing)
	}
	f.notes = append(f.notes, probed.Notes(settings)...)
	return f, nil
}

// checkReplication refuses a kind of replication with which the recipe would not be safe. Otherwise it sets
// the facts about replication.
func (s *store) checkReplication(ctx context.Context, l sqlkit.Link, f *facts) error {
	// SHOW omits a variable that the server does not have. A SELECT would fail.
	var show []string
	for _, name := range []string{"wsrep_on", "wsrep_sync_wait", "group_replication_single_primary_mode", "log_bin", "binlog_format"} {
		show = append(show, "SHOW VARIABLES LIKE '"+name+"'")
	}
	a, err := l.Run(ctx, show...)
	if err != nil {
		return unreached(err)
	}
	variables := map[string]string{}
	for i := range a {
		variables[strings.ToLower(a.First(i).Text(0))] = strings.ToUpper(a.First(i).Text(1))
	}
	f.galera = variables["wsrep_on"] == "ON"
	severalPrimaries := variables["group_replication_single_primary_mode"] == "OFF"
	switch {
	case f.galera && s.onSessions():
		return s.refuse("the server is a node of a Galera cluster, where locks of sessions are those of one node: use recipe=optimistic")
	case f.galera && !f.maria && !syncs(variables["wsrep_sync_wait"]):
		return s.refuse("the server is a node of a Galera cluster and no MariaDB, and has wsrep_sync_wait=%s: "+
			"a node that lags would show grants as missing. Set it to 1 on every node", variables["wsrep_sync_wait"])
	case severalPrimaries && s.onSessions():
		return s.refuse("the server is in a replication group of several primaries, where locks of sessions are those of one of them: use recipe=optimistic")
	case variables["log_bin"] == "ON" && variables["binlog_format"] == "STATEMENT":
		return s.refuse("the server has binlog_format=STATEMENT, by which it refuses what the recipe writes, or a replica repeats it otherwise: use ROW or MIXED")
	}
	f.clocks = f.galera || severalPrimaries
	if f.galera {
		f.notes = append(f.notes, "this server is a node of a Galera cluster")
	}
	if severalPrimaries {
		f.notes = append(f.notes, "this server is in a replication group with several primaries, on which the recipe is not tested")
	}
	if f.clocks {
		f.notes = append(f.notes, fmt.Sprintf("the clocks of the servers may differ by skew=%s. "+
			"If they differ by more, two clients may hold one lock", s.cfg.skew))
	}
	return nil
}

// syncs reports whether a value of wsrep_sync_wait includes queries.
func syncs(value string) bool {
	n, err := strconv.Atoi(value)
	return err == nil && n&1 == 1
}

// The columns of SHOW INDEX.
const (
	indexNotUnique = 1
	indexName      = 2
	indexColumn    = 4 // NULL for an expression
	indexPrefix    = 7 // NULL if the whole column is indexed
	indexType      = 10
)

// refuseTable refuses a user's table without row locks, or in which a name may have two rows: two clients
// could then lock one each. MariaDB checks a unique index of type HASH without a lock.
func (s *store) refuseTable(ctx context.Context, l sqlkit.Link) error {
	schema, table := "DATABASE()", s.cfg.Table
	if before, after, found := strings.Cut(table, "."); found {
		schema, table = "'"+before+"'", after
	}
	a, err := l.Run(ctx, "SHOW INDEX FROM "+s.cfg.Table,
		fmt.Sprintf("SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = '%s'", schema, table))
	if err != nil {
		return unreached(err)
	}
	for _, row := range a[1] { // several if their names differ in case
		if engine := row.Text(0); !strings.EqualFold(engine, "InnoDB") {
			return s.refuse("table %s has engine %q, which has no row locks: a table of engine InnoDB is needed", s.cfg.Table, engine)
		}
	}
	columns, unfit := map[string][]string{}, map[string]bool{}
	for _, row := range a[0] {
		name, column := row.Text(indexName), row.Text(indexColumn)
		if row.True(indexNotUnique) {
			continue
		}
		if !strings.EqualFold(column, s.cfg.Column) || !row.Null(indexPrefix) || row.Text(indexType) != "BTREE" {
			unfit[name] = true
		}
		if !row.Null(indexPrefix) {
			column += "(" + row.Text(indexPrefix) + ")"
		}
		columns[name] = append(columns[name], column)
	}
	var found []string
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		if len(columns[name]) == 1 && !unfit[name] {
			return nil
		}
		found = append(found, fmt.Sprintf("%s (%s)", name, strings.Join(columns[name], ", ")))
	}
	return s.refuse("%w", sqlkit.NotUnique(s.cfg.Table, s.cfg.Column, found))
}

// refuseProxy refuses proxies behind which the recipe would not be safe. A proxy that splits
// reads from writes sends a plain SELECT and a transaction to different servers. A proxy
// that shares connections sends them to different sessions.
func (s *store) refuseProxy(ctx context.Context, l sqlkit.Link) error {
	identify := "SELECT @@hostname, @@port, @@server_id"
	if s.onSessions() {
		identify += ", CONNECTION_ID()"
	}
	var servers []string
	for _, statement := range []string{identify, "START TRANSACTION", identify, "ROLLBACK", identify, identify, identify} {
		a, err := l.Run(ctx, statement)
		if err != nil {
			return unreached(err)
		}
		if statement == identify {
			servers = append(servers, fmt.Sprint(a.Last()))
		}
	}
	slices.Sort(servers)
	if len(slices.Compact(servers)) > 1 {
		return s.refuse("a proxy sends reads and writes to different servers or sessions: give the address of the primary, or one by which the proxy uses the primary alone")
	}
	if !s.onSessions() {
		return nil
	}
	// A server refuses the statement. ProxySQL answers it by itself.
	_, err := l.Run(ctx, "PROXYSQL INTERNAL SESSION")
	if err == nil {
		return s.refuse("ProxySQL stands before the server, and shares connections: give the address of the server, or use recipe=optimistic")
	}
	if _, answered := errors.AsType[*mysql.MySQLError](err); !answered {
		return unreached(err)
	}
	return nil
}

// Guarantees returns the guarantees of this store. The first call needs the server.
func (s *store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	f, err := s.server.Read(ctx)
	if err != nil {
		return driver.Guarantees{}, err
	}
	g := Declared(s.cfg.Recipe)
	g.Notes = append(g.Notes, f.notes...)
	return g, nil
}

// Declared returns the guarantees of a recipe on an ordinary server, without a connection.
func Declared(r Recipe) driver.Guarantees {
	kind := "mysql " + string(r)
	if r == Optimistic {
		g := sqlkit.OptimisticGuarantees(kind, false)
		g.EarlyEnd = append(g.EarlyEnd, "a crash of a server that has innodb_flush_log_at_trx_commit other than 1")
		g.Notes = []string{
			"works through poolers and proxies, except those that send reads to replicas, and on Galera; a held lock needs no connection",
			"on Galera a grant lasts longer than its TTL by the declared skew (1s); a node whose clock differs by more is refused",
			"each name in use has a row, which is removed after an idle minute",
		}
		return g
	}
	g := sqlkit.SessionGuarantees(kind, unit, unit, "KILL")
	g.Notes = append(g.Notes,
		"the server's wait_timeout, set to the TTL, frees the lock of a silent or stopped holder; a crash frees it at once if the machine continues to run",
		"refused: proxies that share connections or split reads from writes, Galera, and group replication with several primaries",
		"a ping every half second detects a primary that became read-only and, on a user's pool, the end of a connection. If an old primary remains writable or cannot be reached, its holders notice the loss after the TTL",
	)
	if r == Named {
		g.Reach = "every client of the server, in all its databases"
	}
	if r == Pessimistic {
		g.Shared, g.Semaphore, g.Slots, g.Order = true, true, true, driver.OrderNone
		g.Notes = append(g.Notes,
			"on one name, readers and semaphores of each size wait for one another, and cannot block a writer forever",
			sqlkit.PermitsNote,
			"MariaDB serves writers in order",
			"a held lock is an open transaction in the server's list; it does not hold back the purge of old rows",
		)
	}
	return g
}
