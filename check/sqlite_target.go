//go:build linux || darwin

package check

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
)

func init() { locals["sqlite"] = sqliteTarget }

// sqliteTarget returns a file that the workers create. Their binary must import sqlitestore, and its driver.
func sqliteTarget(_ context.Context, dir string, t *Target) error {
	path := filepath.Join(dir, "locks.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	db.SetMaxIdleConns(0) // the file may be another one the next time
	t.onClose(func() { _ = db.Close() })
	var tx *sql.Tx
	t.URL = "sqlite://" + path
	t.Faults = OneAtATime([]StoreFault{
		{
			Kind: faultPauseServer, // what a process does to the others that is stopped in a transaction
			Begin: func(ctx context.Context, _ Fault) (err error) {
				tx, err = db.BeginTx(context.WithoutCancel(ctx), nil)
				return err
			},
			End: func(context.Context, Fault) error { return tx.Rollback() },
		},
		{
			Kind: "flush", Early: true, All: true,
			Begin: func(context.Context, Fault) error {
				return errors.Join(os.Remove(path), os.RemoveAll(path+"-wal"), os.RemoveAll(path+"-shm"))
			},
		},
	})
	return nil
}
