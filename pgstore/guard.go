package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/fence"
)

// Guard is [fence.SQL] for pgx: it refuses a stale token inside the user's own transaction.
// It uses the same table, so that users of pgx and of database/sql guard one resource
// together. [fence.SQL] describes why that is atomic, how to create the table, and which
// errors permit a retry.
//
//	guard := pgstore.Guard{}
//	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
//		if err := guard.Check(ctx, tx, "invoices", lock.Token()); err != nil {
//			return err
//		}
//		_, err := tx.Exec(ctx, "UPDATE invoices ...")
//		return err
//	})
//
// With a DB, a Guard is also a [fence.Guard], which runs the transaction itself.
type Guard struct {
	// DB begins the transactions of Write and Raise. Check does not use it.
	DB interface {
		Begin(context.Context) (pgx.Tx, error) // as pgx.Conn and pgxpool.Pool do
	}
	// Table is the name of the table of tokens, as fence.SQL allows it, with a schema where
	// fence.SQL advises one. Default: fence.DefaultTable.
	Table string
}

var _ fence.Guard[fence.Func] = Guard{}

// Check returns a [*fence.StaleError] if token is smaller than the largest one seen for
// resource. Otherwise it stores token, as part of tx. After any error roll tx back. Errors
// wrap fence.ErrStale, fence.ErrInvalid or fence.ErrUnavailable.
func (g Guard) Check(ctx context.Context, tx pgx.Tx, resource string, token uint64) error {
	table, err := g.validate(ctx, resource, token)
	if err != nil {
		return err
	}
	var newest int64
	err = tx.QueryRow(ctx, `INSERT INTO `+table+` AS f (resource, token) VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token) RETURNING token`, []byte(resource), int64(token)).Scan(&newest)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, resource, err)
	case newest > int64(token):
		return &fence.StaleError{Resource: resource, Token: token, Newest: uint64(newest)}
	}
	return nil
}

type txKey struct{}

// Tx returns the transaction in which a write of [Guard.Write] runs, or nil outside of
// one. The guard commits it; the write must not.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txKey{}).(pgx.Tx)
	return tx
}

// Write implements [fence.Guard]: it begins a transaction on DB, calls Check, calls the
// write with a context that carries the transaction for [Tx], and commits. It rolls back
// when Check or the write fails, when the write panics, or when ctx has ended before the
// commit.
func (g Guard) Write(ctx context.Context, resource string, token uint64, write fence.Func) error {
	if _, err := g.validate(ctx, resource, token); err != nil {
		return err
	}
	tx, err := g.begin(ctx, resource)
	if err != nil {
		return err
	}
	// Rollback does nothing after a commit. If Rollback fails, for example because ctx has
	// ended, pgx ends the connection.
	defer func() { _ = tx.Rollback(ctx) }()
	if err := g.Check(ctx, tx, resource, token); err != nil {
		return err
	}
	if write != nil {
		if err := write(context.WithValue(ctx, txKey{}, tx)); err != nil {
			return err
		}
	}
	if err := fence.CheckArguments(ctx, resource, token); err != nil {
		return err // the context has ended
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%w: %q: the commit was not confirmed, it may have been made: %w", fence.ErrUnavailable, resource, err)
	}
	return nil
}

// Raise implements [fence.Guard].
func (g Guard) Raise(ctx context.Context, resource string, token uint64) error {
	return g.Write(ctx, resource, token, nil)
}

// Newest implements [fence.Guard].
func (g Guard) Newest(ctx context.Context, resource string) (uint64, error) {
	table, err := g.validate(ctx, resource, 1)
	if err != nil {
		return 0, err
	}
	tx, err := g.begin(ctx, resource)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var newest int64
	err = tx.QueryRow(ctx, `SELECT token FROM `+table+` WHERE resource = $1`, []byte(resource)).Scan(&newest)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, resource, err)
	}
	return uint64(newest), nil
}

func (g Guard) begin(ctx context.Context, resource string) (pgx.Tx, error) {
	if g.DB == nil {
		return nil, fmt.Errorf("%w: Guard.DB is nil", fence.ErrInvalid)
	}
	tx, err := g.DB.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: begin: %w", fence.ErrUnavailable, resource, err)
	}
	return tx, nil
}

// validate returns the name of the table, or an error if an argument or the name is invalid or
// the context has ended.
func (g Guard) validate(ctx context.Context, resource string, token uint64) (string, error) {
	if _, err := (fence.SQL{Dialect: fence.PostgreSQL, Table: g.Table}).Schema(); err != nil {
		return "", err
	}
	table := cmp.Or(g.Table, fence.DefaultTable)
	return table, fence.CheckArguments(ctx, resource, token)
}
