package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// facts describe the server.
type facts struct {
	version       int64
	checksClients bool   // the server can check whether a waiting client is still connected
	direct        bool   // there is no pooler before the server
	shows         int    // the number of bytes of a statement that it shows
	table         string // the user's table with its schema
	byteColumn    bool   // the column of a user's table has type bytea
	catches       bool   // the user may use PL/pgSQL, which catches errors
	connections   int64  // how many the server allows this user
	notes         []string
}

// beforeLabel is the space for the text of a statement before its label.
const beforeLabel = 64

// labelBytes returns the space for a label in the part of a statement that the server shows.
func (s *store) labelBytes() int { return s.facts().shows - beforeLabel }

// refuse returns the error of a server on which the recipe would not be safe.
func (s *store) refuse(format string, args ...any) error {
	return driver.Errorf(driver.CodeRefused, "pgstore: recipe "+string(s.cfg.Recipe)+": "+format, args...)
}

// allowed is an expression for the connections that the server allows this user. A limit of -1 is none.
const allowed = `LEAST(pg_catalog.current_setting('max_connections')::bigint - pg_catalog.current_setting('superuser_reserved_connections')::bigint
	- COALESCE(pg_catalog.current_setting('reserved_connections', true), '0')::bigint,
	(SELECT NULLIF(rolconnlimit, -1) FROM pg_catalog.pg_roles WHERE rolname = session_user),
	(SELECT NULLIF(datconnlimit, -1) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))`

// probe reads the facts, and refuses a server on which the recipe would not be safe.
func (s *store) probe(ctx context.Context) (f facts, err error) {
	// A user's pool may have no free connection for a while.
	ctx, cancel := context.WithTimeout(ctx, sqlkit.AnswerWithin)
	defer cancel()
	const replica = "the server is a replica, which grants nothing: give the primary's address, or those of all servers"
	l, err := s.dial(ctx)
	if errors.Is(err, errReplica) && s.oneHost {
		return f, s.refuse(replica)
	}
	if err != nil {
		return f, err
	}
	defer l.Close()
	a, err := l.Run(ctx, "SELECT pg_catalog.current_setting('server_version_num'), pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'), (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'track_activity_query_size'), pg_catalog.current_setting('track_activities'), pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'), "+
		allowed+", (SELECT pg_catalog.has_language_privilege(oid, 'USAGE') FROM pg_catalog.pg_language WHERE lanname = 'plpgsql')")
	if err != nil {
		return f, unreached(err)
	}
	r := a.Last()
	inRecovery, readOnly := r.True(1), r.Text(2) == "on"
	f = facts{version: r.Int(0), shows: int(r.Int(3)), connections: r.Int(7), catches: r.True(8)}
	switch {
	case inRecovery:
		return f, s.refuse(replica)
	case readOnly && s.cfg.Recipe != Advisory:
		return f, s.refuse("transactions are read-only by default here")
	}
	settings := examine.Facts{}
	if s.writesRows() {
		settings["fsync"], settings["full_page_writes"] = r.Text(5), r.Text(6)
	}
	if s.cfg.Recipe != Optimistic {
		settings["track_activities"] = r.Text(4)
		if err = s.probeSessions(ctx, l, &f); err != nil {
			return f, err
		}
	}
	f.notes = probed.Notes(settings)
	if s.cfg.Table != "" {
		if f.table, err = s.locateTable(ctx, l); err != nil {
			return f, err
		}
		f.byteColumn, err = s.probeColumn(ctx, l, f.table)
	}
	return f, err
}

// probeSessions refuses a server that does not keep or end sessions as the recipes need it.
func (s *store) probeSessions(ctx context.Context, l sqlkit.Link, f *facts) (err error) {
	if f.version < 140000 {
		return s.refuse("PostgreSQL %d is too old to end an idle session: 14 or later is needed, or recipe=optimistic", f.version/10000)
	}
	pooled := false
	if p, ok := l.(*pgLink); ok {
		f.direct, err = direct(ctx, p)
	}
	if err == nil && !f.direct {
		pooled, err = moves(ctx, l, s.dial)
	}
	switch {
	case err != nil:
		return unreached(err)
	case pooled:
		return s.refuse("a pooler in transaction mode stands before the server, such as PgBouncer: a session is not kept there. Give the server's own address, or use recipe=optimistic")
	}
	if s.cfg.Recipe == Advisory {
		if err := s.probeAdvisory(ctx, l); err != nil {
			return err
		}
	}
	_, err = l.Run(ctx, "SELECT pg_catalog.set_config('client_connection_check_interval', '1s', false)")
	if err != nil && sqlState(err) == "" {
		return unreached(err)
	}
	f.checksClients = err == nil
	return nil
}

// probeAdvisory refuses a server on which two sessions get the same advisory lock: some servers that are
// compatible with PostgreSQL accept the functions and do nothing.
func (s *store) probeAdvisory(ctx context.Context, l sqlkit.Link) error {
	other, err := s.dial(ctx)
	if err != nil {
		return unreached(err)
	}
	defer other.Close()
	key := rand.Int64()
	first, err := l.Run(ctx, fmt.Sprintf("SELECT pg_catalog.pg_try_advisory_lock(%d)", key))
	if err != nil {
		return unreached(err)
	}
	second, err := other.Run(ctx, fmt.Sprintf("SELECT pg_catalog.pg_try_advisory_lock(%d)", key))
	if err != nil {
		return unreached(err)
	}
	end, err := l.Run(ctx, fmt.Sprintf("SELECT pg_catalog.pg_advisory_unlock(%d)", key))
	if err != nil {
		return unreached(err)
	}
	if !first.Last().True(0) || second.Last().True(0) || !end.Last().True(0) {
		return s.refuse("the server's advisory locks exclude nobody: two sessions have got one lock. " +
			"It is another server than PostgreSQL, or a proxy stands before it: use recipe=optimistic")
	}
	return nil
}

// locateTable returns the name of the user's table with its schema.
func (s *store) locateTable(ctx context.Context, l sqlkit.Link) (string, error) {
	if strings.Contains(s.cfg.Table, ".") {
		return s.cfg.Table, nil
	}
	schema, err := s.locate(ctx, l, "a table "+s.cfg.Table, "choose the schema, as in table=%s."+s.cfg.Table+" in the URL", strings.ToLower(s.cfg.Table))
	if err == nil && schema == "" {
		err = s.refuse("%sthere is no table %s", s.inSchemas(), s.cfg.Table)
	}
	return quoted(schema) + "." + s.cfg.Table, err
}

// probeColumn reports whether the column of a user's table has type bytea. It refuses other types than
// that and text, and a table in which a name may have two rows: two clients could then lock one each. A
// unique index prevents that, but not in tables that inherit from this one. If the check is deferred, the
// second row exists for a while.
func (s *store) probeColumn(ctx context.Context, l sqlkit.Link, located string) (isBytes bool, err error) {
	t, id := s.cfg.Table, ascii(located)+"::pg_catalog.regclass"
	a, err := l.Run(ctx, fmt.Sprintf(`SELECT c.relkind, pg_catalog.format_type(a.atttypid, NULL), a.attnum,
		c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid)
		FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = '%s' AND NOT a.attisdropped
		WHERE c.oid = %s`, strings.ToLower(s.cfg.Column), id),
		fmt.Sprintf(`SELECT pg_catalog.pg_get_indexdef(i.indexrelid), i.indisunique AND i.indimmediate AND i.indisvalid AND i.indisready
			AND i.indnkeyatts = 1 AND i.indpred IS NULL AND i.indkey[0] = a.attnum AND i.indcollation[0] = a.attcollation
		FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attname = '%s'
		WHERE i.indrelid = %s AND i.indisunique ORDER BY 2 DESC, 1`, strings.ToLower(s.cfg.Column), id))
	if err != nil {
		return false, unreached(err)
	}
	table, indexes := a.First(0), a[1]
	relation, kind, exists, inherited := table.Text(0), table.Text(1), !table.Null(2), table.True(3)
	switch {
	case relation != "r" && relation != "p":
		return false, s.refuse("%s is no table (pg_class.relkind is %q): rows of a table are needed", t, relation)
	case !exists:
		return false, s.refuse("table %s has no column %s", t, s.cfg.Column)
	case kind != "bytea" && kind != "text" && kind != "character varying":
		return false, s.refuse("column %s of table %s is of type %q: text, varchar or bytea is needed", s.cfg.Column, t, kind)
	case inherited:
		return false, s.refuse("other tables inherit from %s, and no index of it covers their rows: a table without them is needed", t)
	case !indexes.First().True(1):
		var found []string
		for _, row := range indexes {
			found = append(found, row.Text(0))
		}
		return false, s.refuse("%w", sqlkit.NotUnique(t, s.cfg.Column, found))
	}
	return kind == "bytea", nil
}

// facts returns what the probe has read from the server.
func (s *store) facts() facts {
	f, _ := s.server.Facts()
	return f
}

// Guarantees returns the guarantees of this store. The first call needs the server.
func (s *store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	f, err := s.server.Read(ctx)
	if err != nil {
		return driver.Guarantees{}, err
	}
	g := Declared(s.cfg.Recipe)
	if s.cfg.Recipe != Optimistic && !s.wanted.notified(f.direct) {
		g.Wanted = driver.WakePoll
	}
	g.Notes = append(g.Notes, f.notes...)
	if schema, known := s.schema.Facts(); known {
		g.Notes = append(g.Notes, "the tables are in the schema "+schema)
	}
	return g, nil
}

// reachSchema is the reach of the recipes with tables.
const reachSchema = "every client of the server with the same database and schema"

// Declared returns the guarantees of a recipe on an ordinary server, without a connection.
func Declared(r Recipe) driver.Guarantees {
	kind := "postgres " + string(r)
	if r == Optimistic {
		g := sqlkit.OptimisticGuarantees(kind, true)
		g.Reach = reachSchema
		g.Notes = []string{
			"works through poolers and proxies; a held lock needs no connection, and all waiters share one that listens",
			"a process may replace its grant by that of its own next waiter, within 5 ms of the first",
			"behind a pooler and on a user's pool the store gets no notifications, so waiters poll",
			"each grant is on the server's disk before the client gets it, also with synchronous_commit=off",
			"two primaries grant the same lock, and no client notices: stop the old one first",
			"each name in use has a row, which is removed after an idle minute",
		}
		return g
	}
	g := sqlkit.SessionGuarantees(kind, 50*time.Millisecond, unit, "pg_terminate_backend")
	g.Shared, g.Mixed, g.Wanted = true, true, driver.WakePush
	g.Notes = append(g.Notes,
		"the server's idle timeout, set to the TTL, frees the lock of a silent or stopped holder; a crash frees it at once if the machine continues to run",
		"refused: a pooler in transaction mode",
		"a new primary has no grants of the old one: holders notice when their connection ends, or after the TTL. If the old one still serves clients, both grant, and no client notices: stop it first",
		"on a user's pool a ping every half second detects the end of a connection",
		"a process that uses Sticky or Wanted listens on one more connection. Behind a pooler and on a user's pool it gets no notifications, so it reads once a second",
		"readers cannot block a writer forever. The server serves writers in order, but a waiter repeats a statement after 5s, or after a shorter TTL of at least 1s: others may then get the lock before it",
		"a waiter has a snapshot for at most 10s: CREATE INDEX CONCURRENTLY waits for its end, and vacuum removes no row that was deleted or changed later",
	)
	switch r {
	case Advisory:
		g.Order = driver.OrderNone
	case Pessimistic:
		g.Semaphore, g.Slots, g.Mixed, g.Order = true, true, false, driver.OrderNone
		g.Reach = reachSchema
		g.Notes = append(g.Notes,
			"on one name, readers and semaphores of each size wait for one another",
			sqlkit.PermitsNote,
			"a held lock is an open transaction: vacuum removes no row that was deleted or changed later",
		)
	}
	return g
}
