//go:build linux

package sqlitestore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// faults injects faults between the store and its file.
type faults struct {
	file  string
	plain *sql.DB // a connection beside the store
	stop  *sql.Tx
	delay atomic.Int64 // delay of the answers to commits, in nanoseconds
	lose  atomic.Bool  // whether the next commit loses its answer
}

func newFaults(t *testing.T) *faults {
	f := &faults{file: t.TempDir() + "/locks.db"}
	var err error
	if f.plain, err = sql.Open("sqlite", "file:"+f.file+"?_txlock=immediate&_pragma=busy_timeout(10000)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.plain.Close() })
	if _, err := f.plain.Exec(schema); err != nil { // Leftovers may be read before the first step
		t.Fatal(err)
	}
	return f
}

// open opens a store whose connection goes through the faults.
func (f *faults) open(t testing.TB, namespace string) driver.Store {
	t.Helper()
	s, err := Open(t.Context(), f.file, namespace)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s.db = sql.OpenDB(connector{f})
	s.db.SetMaxOpenConns(1)
	return s
}

// begin blocks writes of all other clients until end.
func (f *faults) begin(t testing.TB) {
	var err error
	if f.stop, err = f.plain.BeginTx(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

func (f *faults) end(t testing.TB) {
	if err := f.stop.Rollback(); err != nil {
		t.Error(err)
	}
}

// left lists the entries in the file.
func (f *faults) left(ctx context.Context) (left []string, err error) {
	rows, err := f.plain.QueryContext(ctx, "SELECT CAST(name AS TEXT) || ' ' || id FROM entries")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var what string
		if err := rows.Scan(&what); err != nil {
			return nil, err
		}
		left = append(left, what)
	}
	return left, rows.Err()
}

type connector struct{ f *faults }

func (c connector) Driver() sqldriver.Driver { return c.f.plain.Driver() }

func (c connector) Connect(context.Context) (sqldriver.Conn, error) {
	inner, err := c.Driver().Open("file:" + c.f.file + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	return &conn{inner.(fullConn), c.f}, nil
}

type fullConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.SessionResetter
	sqldriver.Validator
}

type conn struct {
	fullConn
	f *faults
}

func (c *conn) BeginTx(ctx context.Context, o sqldriver.TxOptions) (sqldriver.Tx, error) {
	inner, err := c.fullConn.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return &tx{inner, c.f}, nil
}

type tx struct {
	sqldriver.Tx
	f *faults
}

var errLost = errors.New("the answer to the commit was lost")

func (t *tx) Commit() error {
	err := t.Tx.Commit()
	time.Sleep(time.Duration(t.f.delay.Load())) // this is the fault
	if t.f.lose.CompareAndSwap(true, false) {
		return errLost
	}
	return err
}
