package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// facts describe the server.
type facts struct {
	maria      bool
	sysdateNow bool // SYSDATE is the time of the statement, not of its evaluation
	notes      []string
}

// onSessions reports whether the recipe keeps its locks in sessions.
func (s *Store) onSessions() bool { return s.cfg.Recipe != Optimistic }

// refuse returns the error of a server on which the recipe would not be safe.
func (s *Store) refuse(why string) error {
	return driver.Errorf(driver.CodeRefused, "mysqlstore: recipe %s: %s", s.cfg.Recipe, why)
}

// probe reads the facts, and refuses a server on which the recipe would not be safe.
func (s *Store) probe(ctx context.Context) (f facts, err error) {
	l, err := s.dial(ctx)
	if err != nil {
		return f, err
	}
	defer l.Close()
	const (
		version = iota
		autocommit
		readOnly
		innodbReadOnly
		time
		_ // of SLEEP
		timeAfterSleep
		flushing
	)
	a, err := l.Run(ctx, "SELECT VERSION(), @@autocommit, @@global.read_only, @@innodb_read_only, SYSDATE(6), SLEEP(0.002), SYSDATE(6), "+flush)
	if err != nil {
		return f, unreached(err)
	}
	r := a.Last()
	f.maria = strings.Contains(strings.ToLower(r.Text(version)), "mariadb")
	f.sysdateNow = r.Text(time) == r.Text(timeAfterSleep)
	switch {
	case !r.True(autocommit):
		return f, s.refuse("the connections have autocommit off, so that nothing would be committed: leave it on")
	case isReadOnly(r.Text(readOnly)) || r.True(innodbReadOnly):
		return f, fmt.Errorf("mysqlstore: recipe %s: %w", s.cfg.Recipe, sqlkit.ErrReadOnly)
	case s.cfg.Durable && r.Text(flushing) != flushed:
		return f, notDurable(r.Text(flushing))
	}
	notes, err := s.checkReplication(ctx, l)
	if err != nil {
		return f, err
	}
	if err := s.refuseProxy(ctx, l); err != nil {
		return f, err
	}
	f.notes = notes
	if r.Text(flushing) != flushed && !s.onSessions() {
		f.notes = append(f.notes, "this server has innodb_flush_log_at_trx_commit="+r.Text(flushing)+": a crash of its machine, and with 0 one of the server, forgets grants of the last second")
	}
	if f.sysdateNow && s.onSessions() {
		f.notes = append(f.notes, "the server runs with --sysdate-is-now: the time of a token is read in a statement of its own")
	}
	return f, nil
}

// checkReplication refuses a kind of replication with which the recipe would not be safe. It returns
// notes for Guarantees.
func (s *Store) checkReplication(ctx context.Context, l sqlkit.Link) (notes []string, err error) {
	// SHOW omits a variable that the server does not have. A SELECT would fail.
	var show []string
	for _, name := range []string{"wsrep_on", "group_replication_single_primary_mode", "log_bin", "binlog_format"} {
		show = append(show, "SHOW VARIABLES LIKE '"+name+"'")
	}
	a, err := l.Run(ctx, show...)
	if err != nil {
		return nil, unreached(err)
	}
	variables := map[string]string{}
	for i := range a {
		variables[strings.ToLower(a.First(i).Text(0))] = strings.ToUpper(a.First(i).Text(1))
	}
	galera := variables["wsrep_on"] == "ON"
	severalPrimaries := variables["group_replication_single_primary_mode"] == "OFF"
	switch {
	case galera && s.onSessions():
		return nil, s.refuse("the server is a node of a Galera cluster, where locks of sessions are those of one node: use recipe=optimistic")
	case severalPrimaries && s.onSessions():
		return nil, s.refuse("the server is in a replication group of several primaries, where locks of sessions are those of one of them: use recipe=optimistic")
	case variables["log_bin"] == "ON" && variables["binlog_format"] == "STATEMENT":
		return nil, s.refuse("the server has binlog_format=STATEMENT, by which it refuses what the recipe writes, or a replica repeats it otherwise: use ROW or MIXED")
	}
	if galera {
		notes = append(notes, "this server is a node of a Galera cluster: the cluster decides a change when it certifies it")
	}
	if severalPrimaries {
		notes = append(notes, "this server is in a replication group with several primaries, on which the recipe is not tested")
	}
	return notes, nil
}

// refuseProxy refuses proxies behind which the recipe would not be safe. A proxy that splits
// reads from writes sends a plain SELECT and a transaction to different servers. A proxy
// that shares connections sends them to different sessions.
func (s *Store) refuseProxy(ctx context.Context, l sqlkit.Link) error {
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

// facts returns what the probe has read from the server.
func (s *Store) facts() facts {
	f, _ := s.server.Facts()
	return f
}

// Guarantees returns the guarantees of this store. The first call needs the server.
func (s *Store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	f, err := s.server.Wait(ctx)
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
			"works through poolers and proxies, except those that send reads to replicas, and on Galera (tested on a cluster of one node); a held lock needs no connection",
			"each name in use has a row, which is removed after an idle minute",
		}
		return g
	}
	g := sqlkit.SessionGuarantees(kind, unit, unit, "KILL")
	g.Notes = []string{
		"a held lock costs one connection, and so does a waiter",
		sqlkit.PassNote,
		"the server's wait_timeout, which is set to the TTL, frees the lock of a silent or stopped holder; a crash frees it at once if the client's machine continues to run",
		"refused: proxies that share connections or split reads from writes, Galera, and group replication with several primaries",
		"a ping every half second detects a primary that became read-only and, on a user's pool, the end of a connection. If the old primary remains writable or cannot be reached, the holder notices after the TTL",
	}
	if r == Pessimistic {
		g.Shared, g.Semaphore, g.Slots, g.Order = true, true, true, driver.OrderNone
		g.Notes = append(g.Notes,
			"on one name, readers and semaphores of each size wait for one another; a writer excludes them all, and they cannot block it forever",
			"MariaDB serves waiters in order, MySQL 8 by its own rules; waiters for semaphores poll, at most 100ms apart",
			"a held lock is an open transaction in the server's list; it does not hold back the purge of old rows",
		)
	}
	return g
}
