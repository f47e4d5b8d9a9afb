package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// facts describe the server.
type facts struct {
	version       int64
	checksClients bool // the server can check whether a waiting client is still connected
	shows         int  // the number of bytes of a statement that it shows
	byteColumn    bool // the column of a user's table has type bytea
	notes         []string
}

// beforeLabel is the space for the text of a statement before its label.
const beforeLabel = 64

// labelBytes returns the space for a label in the part of a statement that the server shows.
func (s *Store) labelBytes() int { return s.facts().shows - beforeLabel }

// refuse returns the error of a server on which the recipe would not be safe.
func (s *Store) refuse(format string, args ...any) error {
	return driver.Errorf(driver.CodeRefused, "pgstore: recipe "+string(s.cfg.Recipe)+": "+format, args...)
}

// probe reads the facts, and refuses a server on which the recipe would not be safe.
func (s *Store) probe(ctx context.Context) (f facts, err error) {
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
	a, err := l.Run(ctx, "SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('track_activity_query_size'), current_setting('track_activities'), current_setting('fsync'), current_setting('full_page_writes')")
	if err != nil {
		return f, unreached(err)
	}
	r := a.Last()
	inRecovery, readOnly, tracks := r.True(1), r.Text(2) == "on", r.Text(4) == "on"
	f = facts{version: r.Int(0), shows: parseSize(r.Text(3))}
	switch {
	case inRecovery:
		return f, s.refuse(replica)
	case readOnly && s.cfg.Recipe != Advisory:
		return f, s.refuse("transactions are read-only by default here")
	}
	if s.cfg.Recipe == Optimistic || s.cfg.Durable {
		for i, setting := range []string{"fsync", "full_page_writes"} {
			if r.Text(5+i) == "off" {
				f.notes = append(f.notes, setting+" is off here, so a crash of the server's machine may forget grants and tokens, or destroy the tables")
			}
		}
	}
	if s.cfg.Recipe != Optimistic {
		if !tracks {
			f.notes = append(f.notes, "track_activities is off here, so holders and waiters cannot be recognized")
		}
		if f.checksClients, err = s.probeSessions(ctx, l, f.version); err != nil {
			return f, err
		}
	}
	if s.cfg.Table != "" {
		f.byteColumn, err = s.probeColumn(ctx, l)
	}
	return f, err
}

// probeSessions refuses a server that does not keep or end sessions as the recipes need it.
func (s *Store) probeSessions(ctx context.Context, l sqlkit.Link, version int64) (checksClients bool, err error) {
	if version < 140000 {
		return false, s.refuse("PostgreSQL %d is too old to end an idle session: 14 or later is needed, or recipe=optimistic", version/10000)
	}
	pooled, err := moves(ctx, l, s.dial)
	switch {
	case err != nil:
		return false, unreached(err)
	case pooled:
		return false, s.refuse("a pooler in transaction mode stands before the server, such as PgBouncer: a session is not kept there. Give the server's own address, or use recipe=optimistic")
	}
	_, err = l.Run(ctx, "SELECT set_config('client_connection_check_interval', '1s', false)")
	if err != nil && sqlState(err) == "" {
		return false, unreached(err)
	}
	return err == nil, nil
}

// probeColumn reports whether the column of a user's table has type bytea, and refuses other types
// than that and text.
func (s *Store) probeColumn(ctx context.Context, l sqlkit.Link) (isBytes bool, err error) {
	a, err := l.Run(ctx, fmt.Sprintf("SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = '%s'::regclass AND attname = '%s'", s.cfg.Table, strings.ToLower(s.cfg.Column)))
	if err != nil {
		return false, unreached(err)
	}
	switch kind := a.Last().Text(0); kind {
	case "bytea":
		return true, nil
	case "text", "character varying":
		return false, nil
	default:
		return false, s.refuse("column %s of table %s is of type %q: text, varchar or bytea is needed", s.cfg.Column, s.cfg.Table, kind)
	}
}

// parseSize parses a size in the server's notation.
func parseSize(s string) int {
	unit := 1
	for _, u := range []struct {
		name string
		size int
	}{{"kB", 1 << 10}, {"MB", 1 << 20}, {"B", 1}} {
		if t, ok := strings.CutSuffix(s, u.name); ok {
			s, unit = t, u.size
			break
		}
	}
	n, _ := strconv.Atoi(s)
	return n * unit
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
	kind := "postgres " + string(r)
	if r == Optimistic {
		g := sqlkit.OptimisticGuarantees(kind, true)
		g.Notes = []string{
			"works through poolers and proxies; a held lock needs no connection, and all waiters share one that listens",
			"a process may replace its grant by the next one of its own waiters within 5 ms of the first, before it releases the lock",
			"behind a pooler and on a user's pool the store gets no notifications, so waiters poll",
			"each grant is on the server's disk before the client gets it, also with synchronous_commit=off",
			"two primaries grant the same lock, and no client notices: stop the old one before you promote another",
			"each name in use has a row, which is removed after an idle minute",
		}
		return g
	}
	g := sqlkit.SessionGuarantees(kind, 50*time.Millisecond, unit, "pg_terminate_backend")
	g.Shared, g.Mixed = true, true
	g.Notes = []string{
		"a held lock costs one connection, and so does a waiter",
		sqlkit.PassNote,
		"the server's idle timeout, which is set to the TTL, frees the lock of a silent or stopped holder; a crash frees it at once if the client's machine continues to run",
		"refused: a pooler in transaction mode",
		"a new primary has no grants of the old one: holders notice when their connection ends, or after the TTL. If the old primary continues to serve clients, both grant, and no client notices: stop the old one first",
		"on a user's pool a ping every half second detects the end of a connection",
	}
	switch r {
	case Advisory:
		g.Order = driver.OrderNone
		g.Notes = append(g.Notes, "the server serves waiters in order, and readers cannot block a writer forever; readers that are granted together get their tokens in any order")
	case Pessimistic:
		g.Semaphore, g.Slots, g.Mixed, g.Order = true, true, false, driver.OrderNone
		g.Notes = append(g.Notes,
			"on one name, readers and semaphores of each size wait for one another; a writer excludes them all, and they cannot block it forever",
			"waiters for locks are served in order; waiters for semaphores poll, at most 100ms apart",
			"a held lock is an open transaction: vacuum removes no row that was deleted or changed later. A waiter has the same effect",
		)
	}
	return g
}
