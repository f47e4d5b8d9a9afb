//go:build linux

package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/sqlitestore"
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
	return f
}

// open opens a store whose connection goes through the faults.
func (f *faults) open(t testing.TB, namespace string) *record.Store {
	s, err := sqlitestore.New(faulty{f}, f.file, namespace)
	must.Succeed(t, err)
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
	must.Report(t, f.stop.Rollback())
}

// corrupt replaces the record of a held name.
func (f *faults) corrupt(t testing.TB, namespace, name string) (remove func()) {
	key := []byte("lock\x00" + namespace + "\x00" + name)
	exec := func(statement string) {
		if _, err := f.plain.Exec(statement, key); err != nil {
			t.Error(err)
		}
	}
	exec("UPDATE records SET data = '{}', version = version || 'x' WHERE key = ?")
	return func() { exec("DELETE FROM records WHERE key = ?") }
}

// faulty is SQLite's driver with the faults.
type faulty struct{ f *faults }

func (d faulty) Open(name string) (sqldriver.Conn, error) {
	inner, err := d.f.plain.Driver().Open(name)
	if err != nil {
		return nil, err
	}
	return &conn{inner.(fullConn), d.f}, nil
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
