package fence

import (
	"context"
	"database/sql"
	"fmt"
)

// Guard returns a [Guard] whose Do begins a transaction on db, calls
// [SQL.Check], calls write with a context that carries the transaction for
// [Tx], and commits. It rolls back when write fails or panics, or when ctx has
// ended before the commit. Opts may be nil.
//
//	err := guard.Guard(db, nil).Do(ctx, "invoices", token, func(ctx context.Context) error {
//		_, err := fence.Tx(ctx).ExecContext(ctx, "UPDATE invoices ...")
//		return err
//	})
//
// The guard also fences effects of write outside the transaction while write runs,
// but a rollback does not undo them. Do never calls write a second time: [SQL]
// lists the errors after which the caller may.
func (s SQL) Guard(db *sql.DB, opts *sql.TxOptions) Guard {
	return &sqlGuard{sql: s, db: db, opts: opts}
}

type sqlGuard struct {
	sql  SQL
	db   *sql.DB
	opts *sql.TxOptions
}

type txKey struct{}

// Tx returns the transaction in which a write function of [SQL.Guard] runs, or
// nil outside of one. The guard commits it; write must not.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

func (g *sqlGuard) Do(ctx context.Context, resource string, token uint64, write func(context.Context) error) error {
	// Check finds these errors, too, but only after the transaction began.
	if _, err := g.sql.table(); err != nil {
		return err
	}
	if err := check(resource, token); err != nil {
		return err
	}
	if err := ended(ctx, resource); err != nil {
		return err
	}
	tx, err := g.db.BeginTx(ctx, g.opts)
	if err != nil {
		return fmt.Errorf("%w: %q: begin: %w", ErrUnavailable, resource, err)
	}
	// Rollback does nothing after a commit. Its error is ignored: database/sql
	// closes a connection that cannot roll back, and the server rolls back.
	defer func() { _ = tx.Rollback() }()
	if err := g.sql.Check(ctx, tx, resource, token); err != nil {
		return err
	}
	if write != nil {
		if err := write(context.WithValue(ctx, txKey{}, tx)); err != nil {
			return err
		}
	}
	if err := ended(ctx, resource); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %q: the commit was not confirmed, it may have been made: %w", ErrUnavailable, resource, err)
	}
	return nil
}
