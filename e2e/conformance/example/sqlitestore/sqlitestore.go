//go:build linux

// Package sqlitestore keeps locks in an SQLite file that processes of one machine
// share. It is the example of docs/adding-a-store.md, which tells why it is so.
package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
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
	seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: a place's turn, a grant's token
	space   TEXT NOT NULL,                     -- the start of the machine, and the namespace
	name    BLOB NOT NULL,
	id      TEXT NOT NULL UNIQUE,              -- the request's
	granted BOOLEAN NOT NULL,                  -- a grant, or else a place in the queue
	lim     INTEGER NOT NULL,
	expires INTEGER NOT NULL                   -- nanoseconds since the machine was started
);
CREATE INDEX IF NOT EXISTS entries_name ON entries (space, name, granted DESC, seq);
CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires);`

// fallback is how often a waiter looks although nothing woke it, and placeFor how
// long its place stands when it looks no more.
const fallback, placeFor = time.Second, 2 * time.Second

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

// Open opens the locks of a namespace in a file, which it makes if it is not there.
func Open(_ context.Context, path, namespace string) (*Store, error) {
	boot, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
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

// Guarantees tells what this store promises.
func (s *Store) Guarantees(context.Context) (driver.Guarantees, error) {
	return driver.Guarantees{
		Kind: "sqlite", Scope: driver.ScopeMachine,
		Crash: driver.CrashFreesAfterTTL, Pause: driver.PauseLoses,
		Order: driver.OrderFIFO, Wake: driver.WakePush, Fallback: fallback,
		Shared: true, Semaphore: true, Mixed: true,
		Tokens: "a counter in the file; it survives crashes and power cuts",
		MinTTL: 100 * time.Millisecond, MaxTTL: 24 * time.Hour, Lapses: true,
		Break: driver.BreakNone, Visible: driver.VisibleNothing,
		Notes: []string{"a process stopped in the middle of a step holds everybody up until it goes on or is killed",
			"whoever deletes or replaces the file lets others take what is held, and its holders do not hear of it"},
	}, nil
}

// Classify tells what an error means: each carries its code.
func (s *Store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Close ends the waits of this client. Its grants stand until their TTL.
func (s *Store) Close(context.Context) error {
	s.end()
	return s.db.Close()
}

// step is one transaction. SQLite lets one at a time through.
type step struct {
	*sql.Tx
	ctx   context.Context
	space string
	sent  driver.Instant // trust is counted from here
	now   int64          // read after that: deadlines are counted from here
	wake  string         // the ID of a waiter whose turn it is, to be told after the commit
	err   error          // the first of a statement
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
	t.exec(schema) // which does nothing where it has been done
	err = f(t)
	if err = cmp.Or(t.err, err); err != nil {
		return beforeCommit(err)
	}
	if err := tx.Commit(); err != nil {
		// It may have reached the disk all the same.
		return driver.Errorf(driver.CodeUnknown, "sqlite: commit: %w", err)
	}
	if ear, err := net.DialUnix("unixgram", nil, earOf(t.wake)); t.wake != "" && err == nil {
		_ = ear.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // one that is full will look
		_, _ = ear.Write([]byte("!"))
		_ = ear.Close()
	}
	return nil
}

// beforeCommit gives a code to what has none. SQLite takes back what was begun, also
// when the process dies: nothing has changed, and nothing will.
func beforeCommit(err error) error {
	code, forGood := driver.CodeUnavailable, []int{lib.SQLITE_READONLY, lib.SQLITE_PERM, lib.SQLITE_CANTOPEN, lib.SQLITE_NOTADB, lib.SQLITE_CORRUPT}
	if coded, ok := errors.AsType[*driver.Error](err); ok {
		return coded
	} else if e, ok := errors.AsType[*sqlite.Error](err); ok && slices.Contains(forGood, e.Code()&0xff) {
		code = driver.CodeRefused
	}
	return driver.Errorf(code, "sqlite: %w", err)
}

// Acquire grants, waits or says no. A wait listens before it first looks, so that
// no wake-up falls in between, and keeps its place by looking.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if !r.Wait {
		return s.look(ctx, r)
	}
	ear, err := net.ListenUnixgram("unixgram", earOf(r.ID))
	if err != nil {
		return driver.Grant{}, beforeCommit(err)
	}
	defer ear.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	defer context.AfterFunc(ctx, func() { ear.Close() })()
	for placed := false; ; placed = true {
		g, err := s.look(ctx, r)
		held := driver.CodeOf(err) == driver.CodeBusy
		if err != nil && (placed && !held || held && ctx.Err() != nil) {
			return g, driver.Errorf(driver.CodeUnknown, "the wait has ended, and its place may stand: %w", err)
		} else if !held {
			return g, err
		}
		r.From.Queued(nil)
		_ = ear.SetReadDeadline(time.Now().Add(fallback))
		_, _ = ear.Read(make([]byte, 1)) // however it ends, the next look tells
	}
}

// earOf is where a waiter hears. The kernel forgets such an address with its process.
func earOf(id string) *net.UnixAddr { return &net.UnixAddr{Name: "@holdfast-sqlite-" + id} }

// look grants, or says no and writes down the place of a request that waits.
func (s *Store) look(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	err = s.step(ctx, func(t *step) error {
		holders, least, first, _ := t.state(r.Name)
		if holders < min(least, r.Limit) && (first == "" || first == r.ID) {
			t.exec("DELETE FROM entries WHERE id = ?", r.ID) // its place
			g = driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: t.write(r, true, r.TTL), SentAt: t.sent, TTL: r.TTL, Slot: driver.NoSlot}
			t.passOn(r.Name) // shared ones come in together
		} else if r.Wait {
			t.write(r, false, placeFor)
		}
		return nil
	})
	if err == nil && g.Token == 0 {
		err = &driver.BusyError{}
	}
	if ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable {
		err = &driver.Error{Code: driver.CodeWithdrawn, Err: err} // and nothing is left
	}
	return g, err
}

// Undo removes what stands of a request. Its step comes after those of the request:
// steps do not overlap, and an Acquire that has returned makes no more.
func (s *Store) Undo(ctx context.Context, r driver.Request) error {
	return s.step(ctx, func(t *step) error {
		t.exec("DELETE FROM entries WHERE id = ?", r.ID)
		t.passOn(r.Name)
		return nil
	})
}

// theGrant proves ownership, in one step with what is then done to the grant.
const theGrant = " WHERE granted AND seq = ? AND id = ? AND expires > ?"

// Renew sets new deadlines for the grants that still stand.
func (s *Store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	err := s.step(ctx, func(t *step) error {
		for i, g := range grants {
			answers[i] = driver.Renewal{SentAt: t.sent, TTL: g.TTL}
			if t.exec("UPDATE entries SET expires = ?"+theGrant, t.now+int64(g.TTL), g.Token, g.ID, t.now) == 0 {
				answers[i] = driver.Renewal{Cause: driver.CauseGone, Err: notHeld(g)}
			}
		}
		return nil
	})
	for i := range answers {
		if err != nil {
			answers[i] = driver.Renewal{Err: err}
		}
	}
	return answers
}

// Release ends a grant that still stands.
func (s *Store) Release(ctx context.Context, g driver.Grant, _ time.Duration) error {
	return s.step(ctx, func(t *step) error {
		if t.exec("DELETE FROM entries"+theGrant, g.Token, g.ID, t.now) == 0 {
			return cmp.Or(t.err, notHeld(g))
		}
		t.passOn(g.Name)
		return nil
	})
}

func notHeld(g driver.Grant) error {
	return driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d stands", g.Name, g.Token)
}

// state counts the grants of a name and tells the least of their limits, and whose
// place is the first. What has run out is removed.
func (t *step) state(name string) (holders, least int, first string, limit int) {
	t.exec("DELETE FROM entries WHERE expires <= ?", t.now)
	t.row(`SELECT count(*), coalesce(min(lim), ?) FROM entries WHERE granted AND space = ? AND name = ?`,
		[]any{driver.Unlimited, t.space, []byte(name)}, &holders, &least)
	t.row(`SELECT coalesce(min(seq), 0), coalesce(id, ''), coalesce(lim, 0) FROM entries WHERE NOT granted AND space = ? AND name = ?`,
		[]any{t.space, []byte(name)}, new(int64), &first, &limit)
	return holders, least, first, limit
}

// passOn wakes the first in the queue if there is room for it, and nobody else.
func (t *step) passOn(name string) {
	if holders, least, first, limit := t.state(name); first != "" && holders < min(least, limit) {
		t.wake = first
	}
}

// write writes down a place, or a grant, and answers its number. A place that stands
// stays where it is.
func (t *step) write(r driver.Request, granted bool, lasts time.Duration) (seq uint64) {
	t.row(`INSERT INTO entries (space, name, id, granted, lim, expires) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires RETURNING seq`,
		[]any{t.space, []byte(r.Name), r.ID, granted, r.Limit, t.now + int64(lasts)}, &seq)
	return seq
}

// exec and row do nothing after a statement that failed; the step then fails.
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
