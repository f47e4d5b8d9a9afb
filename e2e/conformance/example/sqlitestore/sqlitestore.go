//go:build linux

// Package sqlitestore keeps locks in an SQLite file that processes of one machine
// share. docs/adding-a-store.md explains it step by step.
package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"
	"net/url"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/holdfast-go/holdfast/driver"
)

const schema = `
CREATE TABLE IF NOT EXISTS entries (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: a waiter's position, a grant's token
	space   TEXT NOT NULL,                     -- the start of the machine, and the namespace
	name    BLOB NOT NULL,
	id      TEXT NOT NULL UNIQUE,              -- the request's
	granted BOOLEAN NOT NULL,                  -- a grant; otherwise a queue entry
	lim     INTEGER NOT NULL,
	expires INTEGER NOT NULL                   -- nanoseconds since the machine was started
);
CREATE INDEX IF NOT EXISTS entries_name ON entries (space, name, granted DESC, seq);
CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires);`

// fallback is how often a waiter tries without a notification. entryLife is how long its queue entry
// lasts after its last try, or stoppedLife if its process is alive, but stopped or starved.
const fallback, entryLife, stoppedLife = time.Second, 2 * time.Second, 30 * time.Second

func init() {
	driver.Register("sqlite", func(ctx context.Context, u *url.URL, namespace string) (driver.Store, error) {
		if u.Host != "" || u.Path == "" || u.RawQuery != "" || u.User != nil {
			return nil, driver.Errorf(driver.CodeInvalid, "an SQLite URL is sqlite:///path/to/file and nothing more")
		}
		return Open(ctx, u.Path, namespace)
	})
}

// Store is one client of one file.
type Store struct {
	db          *sql.DB
	path, space string
	ctx         context.Context // ends with Close
	end         context.CancelFunc
}

// Open opens the locks of a namespace in a file, which it creates if it is missing.
func Open(_ context.Context, path, namespace string) (*Store, error) {
	boot, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err := cmp.Or(bootErr, err); err != nil {
		return nil, driver.Errorf(driver.CodeUnsupported, "sqlite: %w", err)
	}
	db.SetMaxOpenConns(1) // the file has one writer at a time anyway
	s := &Store{db: db, path: path, space: string(boot) + namespace}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// String names the store.
func (s *Store) String() string { return "sqlite " + s.path }

// Guarantees returns what this store promises.
func (s *Store) Guarantees(context.Context) (driver.Guarantees, error) {
	return driver.Guarantees{
		Kind: "sqlite", Scope: driver.ScopeMachine,
		Crash: driver.CrashFreesAfterTTL, Pause: driver.PauseLoses,
		Order: driver.OrderFIFO, Wake: driver.WakePush, Fallback: fallback,
		Shared: true, Semaphore: true, Mixed: true,
		Tokens: "a counter in the file; it survives crashes and power cuts",
		MinTTL: 100 * time.Millisecond, MaxTTL: 24 * time.Hour, LeftoversExpire: true,
		Break: driver.BreakNone, Visible: driver.VisibleNothing,
		Notes: []string{"a process that is stopped blocks all others: during a step until it continues or is killed, as the first waiter for at most " + stoppedLife.String(),
			"if the file is deleted or replaced, held locks are granted again, and their holders do not notice"},
	}, nil
}

// Classify returns the code of an error: each error carries its own.
func (s *Store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Close ends the waits of this client. Its grants last until their TTL.
func (s *Store) Close(context.Context) error {
	s.end()
	return s.db.Close()
}

// step is one transaction. SQLite runs one write transaction at a time.
type step struct {
	*sql.Tx
	ctx   context.Context
	space string
	sent  driver.Instant // the validity runs from here
	now   int64          // read after sent: deadlines run from here
	wake  string         // the ID of the waiter to notify after the commit
	err   error          // the first error of a statement
}

func (s *Store) step(ctx context.Context, f func(*step) error) error {
	if s.ctx.Err() != nil {
		return driver.Errorf(driver.CodeClosed, "%s is closed", s)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return beforeCommit(err)
	}
	defer tx.Rollback() // does nothing after a commit
	t := &step{Tx: tx, ctx: ctx, space: s.space, sent: driver.Now()}
	var now unix.Timespec
	t.err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	t.now = now.Nano()
	t.exec(schema) // creates the table if it is missing
	if err := f(t); cmp.Or(t.err, err) != nil {
		return beforeCommit(cmp.Or(t.err, err))
	}
	if err := tx.Commit(); err != nil {
		// The transaction may have reached the disk.
		return driver.Errorf(driver.CodeUnknown, "sqlite: commit: %w", err)
	}
	if conn, err := net.DialUnix("unixgram", nil, addressOf(t.wake)); t.wake != "" && err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // a full socket wakes its waiter anyway
		_, _ = conn.Write([]byte("!"))
		_ = conn.Close()
	}
	return nil
}

// beforeCommit adds a code to an error without one. SQLite rolls the transaction back, even if
// the process dies: nothing has changed, and nothing will.
func beforeCommit(err error) error {
	code, permanent := driver.CodeUnavailable, []int{lib.SQLITE_READONLY, lib.SQLITE_PERM, lib.SQLITE_CANTOPEN, lib.SQLITE_NOTADB, lib.SQLITE_CORRUPT}
	if coded, ok := errors.AsType[*driver.Error](err); ok {
		return coded
	} else if e, ok := errors.AsType[*sqlite.Error](err); ok && slices.Contains(permanent, e.Code()&0xff) {
		code = driver.CodeRefused
	}
	return driver.Errorf(code, "sqlite: %w", err)
}

// Acquire grants the lock, waits for it, or returns CodeBusy. A waiter listens before its first
// try, so that it misses no notification. Each try renews its queue entry.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if !r.Wait {
		return s.try(ctx, r)
	}
	conn, err := net.ListenUnixgram("unixgram", addressOf(r.ID))
	if err != nil {
		return driver.Grant{}, beforeCommit(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	for queued := false; ; queued = true {
		g, err := s.try(ctx, r)
		held := driver.CodeOf(err) == driver.CodeBusy
		if err != nil && (queued && !held || held && ctx.Err() != nil) {
			return g, driver.Errorf(driver.CodeUnknown, "the wait has ended, and its queue entry may remain: %w", err)
		} else if !held {
			return g, err
		}
		r.From.Queued(nil)
		_ = conn.SetReadDeadline(time.Now().Add(fallback))
		_, _ = conn.Read(make([]byte, 1)) // in any case, try again
	}
}

// addressOf returns the address of a waiter's socket. The kernel removes it with the process.
func addressOf(id string) *net.UnixAddr { return &net.UnixAddr{Name: "@holdfast-sqlite-" + id} }

// The function waits(id) reports to a statement whether a waiter has its socket.
var _ = sqlite.RegisterScalarFunction("waits", 1, func(_ *sqlite.FunctionContext, id []sqldriver.Value) (sqldriver.Value, error) {
	conn, err := net.DialUnix("unixgram", nil, addressOf(id[0].(string)))
	return err == nil && conn.Close() == nil, nil
})

// try grants the lock, or returns CodeBusy and writes the queue entry of a request that waits.
func (s *Store) try(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	err = s.step(ctx, func(t *step) error {
		holders, least, first, _ := t.state(r.Name)
		if holders < min(least, r.Limit) && (first == "" || first == r.ID) {
			t.exec("DELETE FROM entries WHERE id = ?", r.ID) // its queue entry
			g = driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: t.write(r, true, r.TTL), SentAt: t.sent, TTL: r.TTL, Slot: driver.NoSlot}
			t.wakeNext(r.Name) // the next waiter may be shared, too
		} else if r.Wait {
			t.write(r, false, entryLife)
		}
		return nil
	})
	if err == nil && g.Token == 0 {
		err = &driver.BusyError{}
	}
	if ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable {
		err = &driver.Error{Code: driver.CodeWithdrawn, Err: err} // nothing remains
	}
	return g, err
}

// Undo removes everything of a request. Its step comes after the steps of the request:
// steps do not overlap, and an Acquire that has returned makes none.
func (s *Store) Undo(ctx context.Context, r driver.Request) error {
	return s.step(ctx, func(t *step) error {
		t.exec("DELETE FROM entries WHERE id = ?", r.ID)
		t.wakeNext(r.Name)
		return nil
	})
}

// ownGrant proves ownership in the same statement that changes the grant.
const ownGrant = " WHERE granted AND seq = ? AND id = ? AND expires > ?"

// Renew sets new deadlines for the grants that still exist.
func (s *Store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	results := make([]driver.Renewal, len(grants))
	err := s.step(ctx, func(t *step) error {
		for i, g := range grants {
			results[i] = driver.Renewal{SentAt: t.sent, TTL: g.TTL}
			if t.exec("UPDATE entries SET expires = ?"+ownGrant, t.now+int64(g.TTL), g.Token, g.ID, t.now) == 0 {
				results[i] = driver.Renewal{Cause: driver.CauseGone, Err: notHeld(g)}
			}
		}
		return nil
	})
	for i := range results {
		if err != nil {
			results[i] = driver.Renewal{Err: err}
		}
	}
	return results
}

// Release ends a grant that still exists.
func (s *Store) Release(ctx context.Context, g driver.Grant, _ time.Duration) error {
	return s.step(ctx, func(t *step) error {
		if t.exec("DELETE FROM entries"+ownGrant, g.Token, g.ID, t.now) == 0 {
			return cmp.Or(t.err, notHeld(g))
		}
		t.wakeNext(g.Name)
		return nil
	})
}

func notHeld(g driver.Grant) error {
	return driver.Errorf(driver.CodeNotHeld, "no grant of %q has token %d", g.Name, g.Token)
}

// state returns the number of the name's grants, the least of their limits, and the ID and
// limit of the first waiter. It removes expired entries.
func (t *step) state(name string) (holders, least int, first string, limit int) {
	t.exec("DELETE FROM entries WHERE expires <= ? AND (granted OR expires <= ? OR NOT waits(id))", t.now, t.now-int64(stoppedLife-entryLife))
	t.row("SELECT count(*), coalesce(min(lim), ?) FROM entries WHERE granted AND space = ? AND name = ?", []any{driver.Unlimited, t.space, []byte(name)}, &holders, &least)
	t.row("SELECT coalesce(min(seq), 0), coalesce(id, ''), coalesce(lim, 0) FROM entries WHERE NOT granted AND space = ? AND name = ?", []any{t.space, []byte(name)}, new(int64), &first, &limit)
	return holders, least, first, limit
}

// wakeNext notifies the first waiter if the limits allow its grant.
func (t *step) wakeNext(name string) {
	if holders, least, first, limit := t.state(name); first != "" && holders < min(least, limit) {
		t.wake = first
	}
}

// write writes a queue entry or a grant and returns its number. An existing entry keeps its
// number.
func (t *step) write(r driver.Request, granted bool, lasts time.Duration) (seq uint64) {
	t.row(`INSERT INTO entries (space, name, id, granted, lim, expires) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires RETURNING seq`, []any{t.space, []byte(r.Name), r.ID, granted, r.Limit, t.now + int64(lasts)}, &seq)
	return seq
}

// exec and row do nothing after a failed statement; the step then fails.
func (t *step) exec(query string, args ...any) (changed int64) {
	if t.err == nil {
		var r sql.Result
		if r, t.err = t.ExecContext(t.ctx, query, args...); t.err == nil {
			changed, t.err = r.RowsAffected()
		}
	}
	return changed
}

func (t *step) row(query string, args []any, into ...any) {
	if t.err == nil {
		t.err = t.QueryRowContext(t.ctx, query, args...).Scan(into...)
	}
}
