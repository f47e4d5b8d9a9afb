// Package sqlitestore keeps locks in an SQLite file that the processes of one machine share.
// docs/adding-a-store.md explains it step by step.
//
// # What keeps a grant safe
//
// Each name has a record, which package record writes. A write compares the version of the record in the statement that
// replaces it, and SQLite executes one write transaction at a time, whichever process begins it. A version is random
// and never used again. The deadlines in a record are those of the machine's clock, which all clients share. A write
// is on the disk when it is answered, and a transaction that did not commit is rolled back, even if its process is
// killed. So only the outcome of a commit may be unknown.
//
// A file that was deleted or replaced while clients have it open would be two files: each request compares the file
// at the path with the file that its connection has open, and opens the new one. The holder of a grant in the old file
// notices that within [record.Options].Notice.
//
// SQLite's locks need a file system of this machine, so Open refuses the others.
package sqlitestore

import (
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"iter"
	"net/url"
	"path/filepath"
	"slices"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/filesystem"
)

func init() {
	driver.Register("sqlite", func(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
		if u.Host != "" || u.Path == "" || u.RawQuery != "" || u.User != nil {
			return nil, driver.Errorf(driver.CodeInvalid, "an SQLite URL is sqlite:///path/to/file and nothing more")
		}
		return Open(u.Path, namespace)
	})
}

// Open opens the locks of a namespace in a file, which the first request creates. The directory must exist, on a
// file system that belongs to this machine.
func Open(path, namespace string) (*record.Store, error) {
	return New(&sqlite.Driver{}, path, namespace)
}

// New is [Open] with a driver that wraps the one of modernc.org/sqlite, for example to trace its statements.
func New(d sqldriver.Driver, path, namespace string) (*record.Store, error) {
	if err := driver.CheckNamespace(namespace); err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "sqlite: %w", err)
	}
	switch name, local, err := filesystem.Of(filepath.Dir(path)); {
	case err != nil:
		return nil, driver.Errorf(driver.CodeRefused, "sqlite: %s: %w", filepath.Dir(path), err)
	case !local:
		return nil, driver.Errorf(driver.CodeRefused, "sqlite: %s is on %s: SQLite's locks need a file system of this machine, such as ext4", path, name)
	}
	db := sql.OpenDB(&connector{d, path})
	db.SetMaxOpenConns(1) // the file has one writer at a time anyway
	return record.New(file{db}, "sqlite "+path, driver.Guarantees{
		Kind: "sqlite", Scope: driver.ScopeMachine, Reach: "this machine: every process that opens the same file",
		EarlyEnd: []string{"the file deleted or replaced"},
		Notes:    []string{"a process that is stopped during a request blocks all others until it continues or is killed"},
	}, record.Options{Namespace: namespace}), nil
}

// file is the storage.
type file struct{ db *sql.DB }

const (
	schema = "CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, version TEXT NOT NULL, data BLOB NOT NULL)"
	insert = "INSERT INTO records (data, version, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING version"
	update = "UPDATE records SET data = ?, version = ? WHERE key = ? AND version = ? RETURNING version"
	list   = "SELECT key, data FROM records WHERE substr(key, 1, length(?1)) = ?1"
)

// step calls f in a transaction, and rolls it back unless f commits it. SQLite executes one write
// transaction at a time. The tables are created if they are missing.
func (s file) step(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return beforeCommit(err)
	}
	defer tx.Rollback() // does nothing after a commit
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return beforeCommit(err)
	}
	return f(tx)
}

// Get implements record.Storage.
func (s file) Get(ctx context.Context, key string) (o record.Object, err error) {
	err = s.step(ctx, func(tx *sql.Tx) error {
		row := tx.QueryRowContext(ctx, "SELECT version, data FROM records WHERE key = ?", []byte(key))
		if err := row.Scan(&o.Version, &o.Data); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return beforeCommit(err)
		}
		o.Now, err = now()
		return err
	})
	return o, err
}

// Put implements record.Storage. The statement that writes the record compares its version.
// Versions are random, so none is used again after the file was restored.
func (s file) Put(ctx context.Context, key string, data []byte, version string) (next string, err error) {
	err = s.step(ctx, func(tx *sql.Tx) error {
		statement, args := update, []any{data, rand.Text(), []byte(key), version}
		if version == "" {
			statement, args = insert, args[:3]
		}
		err := tx.QueryRowContext(ctx, statement, args...).Scan(&next)
		if errors.Is(err, sql.ErrNoRows) {
			return driver.Conflict(key)
		} else if err != nil {
			return beforeCommit(err)
		}
		if err := tx.Commit(); err != nil {
			// The transaction may have reached the disk.
			return driver.Errorf(driver.CodeUnknown, "sqlite: commit: %w", err)
		}
		return nil
	})
	return next, err
}

// List implements record.Storage.
func (s file) List(ctx context.Context, prefix string) iter.Seq2[record.Entry, error] {
	return func(yield func(record.Entry, error) bool) {
		var all []record.Entry
		err := s.step(ctx, func(tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, list, []byte(prefix))
			if err != nil {
				return beforeCommit(err)
			}
			defer rows.Close()
			for rows.Next() {
				var e record.Entry
				if err := rows.Scan(&e.Key, &e.Data); err != nil {
					return beforeCommit(err)
				}
				all = append(all, e)
			}
			return rows.Err()
		})
		at, clock := now()
		if err = errors.Join(err, clock); err != nil {
			yield(record.Entry{}, err)
			return
		}
		for _, e := range all {
			if e.Now = at; !yield(e, nil) {
				return
			}
		}
	}
}

// Close implements record.Storage.
func (s file) Close() error { return s.db.Close() }

// beforeCommit adds a code to an error. SQLite rolls the transaction back, even if the process dies.
// So the request has changed nothing, and will change nothing.
func beforeCommit(err error) error {
	permanent := []int{lib.SQLITE_READONLY, lib.SQLITE_PERM, lib.SQLITE_CANTOPEN, lib.SQLITE_NOTADB, lib.SQLITE_CORRUPT}
	if e, ok := errors.AsType[*sqlite.Error](err); ok && slices.Contains(permanent, e.Code()&0xff) {
		return driver.Errorf(driver.CodeRefused, "sqlite: %w", err)
	}
	return driver.Errorf(driver.CodeUnavailable, "sqlite: %w", err)
}
