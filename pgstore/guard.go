package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
)

// Guard is [fence.SQL] for pgx: it refuses a stale token inside the user's own
// transaction, by the same table, so that users of pgx and of database/sql guard one
// resource together. [fence.SQL] says why that is atomic, what creates the table, and
// which errors may be tried again.
//
//	guard := pgstore.Guard{}
//	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
//		if err := guard.Check(ctx, tx, "invoices", lock.Token()); err != nil {
//			return err
//		}
//		_, err := tx.Exec(ctx, "UPDATE invoices ...")
//		return err
//	})
type Guard struct {
	// Table is the name of the table of tokens, as fence.SQL allows it. Default:
	// fence.DefaultTable.
	Table string
}

// Check refuses a token smaller than the largest one seen for resource with a
// [*fence.StaleError], and otherwise remembers it if tx is committed. After any error
// roll tx back. Errors wrap fence.ErrStale, fence.ErrInvalid or fence.ErrUnavailable.
func (g Guard) Check(ctx context.Context, tx pgx.Tx, resource string, token uint64) error {
	if _, err := (fence.SQL{Dialect: fence.PostgreSQL, Table: g.Table}).Schema(); err != nil {
		return err // the name of the table
	}
	table := g.Table
	if table == "" {
		table = fence.DefaultTable
	}
	if err := driver.CheckName(resource); err != nil {
		return fmt.Errorf("%w: resource: %w", fence.ErrInvalid, err)
	}
	if token == 0 || token >= driver.MaxToken {
		return &fence.TokenError{Token: token}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %q: nothing written: %w", fence.ErrUnavailable, resource, errors.Join(err, context.Cause(ctx)))
	}
	var newest int64
	err := tx.QueryRow(ctx, `INSERT INTO `+table+` AS f (resource, token) VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token) RETURNING token`, []byte(resource), int64(token)).Scan(&newest)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, resource, err)
	case newest > int64(token):
		return &fence.StaleError{Resource: resource, Token: token, Newest: uint64(newest)}
	}
	return nil
}
