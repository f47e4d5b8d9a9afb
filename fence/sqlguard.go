package fence

import (
	"context"
	"database/sql"
	"fmt"
)

// Guard returns a [Guard] whose Write begins a transaction on db and calls [SQL.Check]. Write
// then calls the write with a context that carries the transaction for [Tx], and commits. It
// rolls back when the write fails or panics, or when ctx has ended before the commit. Opts may
// be nil.
//
//	guard := fence.SQL{Dialect: fence.PostgreSQL}.Guard(db, nil)
//	err := guard.Write(ctx, "invoices", token, func(ctx context.Context) error {
//		_, err := fence.Tx(ctx).ExecContext(ctx, "UPDATE invoices ...")
//		return err
//	})
//
// The guard also fences effects of the write outside the transaction while the write runs, but
// a rollback does not undo them. Write never calls its function a second time. [SQL] lists the
// errors after which the caller may call Write again.
func (s SQL) Guard(db *sql.DB, opts *sql.TxOptions) Guard[Func] {
	return &sqlGuard{
		db: db, opts: opts,
		valid:  func() error { _, err := s.table(); return err },
		check:  s.Check,
		newest: func(ctx context.Context, resource string) (uint64, error) { return s.Newest(ctx, db, resource) },
	}
}

// Guard returns a [Guard] for rows whose key is a resource's name, as [SQL.Guard] does
// with the table of tokens. A key that is a number is given in decimal.
func (c Column) Guard(db *sql.DB, opts *sql.TxOptions) Guard[Func] {
	return &sqlGuard{
		db: db, opts: opts,
		valid: c.valid,
		check: func(ctx context.Context, tx *sql.Tx, resource string, token uint64) error {
			return c.Check(ctx, tx, resource, token)
		},
		newest: func(ctx context.Context, resource string) (uint64, error) { return c.Newest(ctx, db, resource) },
	}
}

type sqlGuard struct {
	db     *sql.DB
	opts   *sql.TxOptions
	valid  func() error
	check  func(ctx context.Context, tx *sql.Tx, resource string, token uint64) error
	newest func(ctx context.Context, resource string) (uint64, error)
}

type txKey struct{}

// Tx returns the transaction in which a write of [SQL.Guard] or [Column.Guard] runs, or
// nil outside of one. The guard commits it; the write must not.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

func (g *sqlGuard) Raise(ctx context.Context, resource string, token uint64) error {
	return g.Write(ctx, resource, token, nil)
}

func (g *sqlGuard) Newest(ctx context.Context, resource string) (uint64, error) {
	if err := checkResource(resource); err != nil {
		return 0, err
	}
	return g.newest(ctx, resource)
}

func (g *sqlGuard) Write(ctx context.Context, resource string, token uint64, write Func) error {
	// check finds these errors, too, but only after the transaction has begun.
	if err := g.valid(); err != nil {
		return err
	}
	if err := CheckArguments(ctx, resource, token); err != nil {
		return err
	}
	tx, err := g.db.BeginTx(ctx, g.opts)
	if err != nil {
		return fmt.Errorf("%w: %q: begin: %w", ErrUnavailable, resource, err)
	}
	// Rollback does nothing after a commit. Its error is ignored: database/sql
	// closes a connection that cannot roll back, and the server rolls back.
	defer func() { _ = tx.Rollback() }()
	if err := g.check(ctx, tx, resource, token); err != nil {
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
