package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/holdfast-go/holdfast/driver"
)

// Column guards single rows by a column of their own, which needs no further
// table:
//
//	ALTER TABLE accounts ADD COLUMN fence BIGINT NOT NULL DEFAULT 0
//
//	guard := fence.Column{Dialect: fence.MySQL, Table: "accounts", Key: "id", Column: "fence"}
//	if err := guard.Check(ctx, tx, 17, lock.Token()); err != nil {
//		return err
//	}
//	// read and write account 17 with tx
//
// It is atomic in the same way as [SQL], with the lock of the guarded row itself.
// The documentation of SQL applies here, too.
//
// # By hand
//
// Where the write is one statement, the column needs no Check:
//
//	UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?
//
// with the token for both fence arguments. The statement is atomic; its outcome is
// ambiguous. No affected row means that the token is stale, or that there is no
// such row, or, under MySQL without clientFoundRows, that the statement changed
// nothing. To distinguish them, read the column back with FOR UPDATE in the same
// transaction: a number larger than the token means that the token is stale.
// Check does that.
type Column struct {
	// Dialect is required.
	Dialect Dialect
	// Table, Key and Column are names as [SQL] allows for its table: only Table
	// takes a schema. Key has a unique index. Column is a signed 64-bit integer;
	// NULL counts as 0. All three are required.
	Table, Key, Column string
}

// Check refuses a token smaller than that of the row whose key is key with a
// [*StaleError], and otherwise writes it to the row, which stays locked until tx
// ends. Token has the limits of [Guard]. After any error roll tx back.
//
// Errors wrap [ErrStale], [ErrNotExist], [ErrInvalid] or [ErrUnavailable].
func (c Column) Check(ctx context.Context, tx *sql.Tx, key any, token uint64) error {
	resource := fmt.Sprintf("%s %s=%v", c.Table, c.Key, key)
	if b, ok := key.([]byte); ok {
		resource = fmt.Sprintf("%s %s=%q", c.Table, c.Key, b)
	}
	if err := c.valid(); err != nil {
		return err
	}
	if err := checkToken(token); err != nil {
		return err
	}
	if err := ended(ctx, resource); err != nil {
		return err
	}
	update, read := c.statements()
	if _, err := tx.ExecContext(ctx, update, int64(token), key, int64(token)); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, resource, err)
	}
	var got sql.NullInt64
	switch err := tx.QueryRowContext(ctx, read, key).Scan(&got); {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %s", ErrNotExist, resource)
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, resource, err)
	case got.Int64 > int64(token):
		return &StaleError{Resource: resource, Token: token, Newest: uint64(got.Int64)}
	case got.Int64 < int64(token):
		// A trigger, or a column too narrow outside of MySQL's strict mode.
		return fmt.Errorf("%w: %s: column %s is %d after it was set to %d", ErrUnavailable, resource, c.Column, got.Int64, token)
	}
	return nil
}

// Newest returns the token of the committed row whose key is key, 0 if it has none.
// Errors wrap [ErrNotExist], [ErrInvalid] or [ErrUnavailable].
func (c Column) Newest(ctx context.Context, db *sql.DB, key any) (uint64, error) {
	if err := c.valid(); err != nil {
		return 0, err
	}
	var newest sql.NullInt64
	err := db.QueryRowContext(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", c.Column, c.Table, c.Key, c.Dialect.arg(1)), key).Scan(&newest)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("%w: %s %s=%v", ErrNotExist, c.Table, c.Key, key)
	case err != nil:
		return 0, fmt.Errorf("%w: %s %s=%v: %w", ErrUnavailable, c.Table, c.Key, key, err)
	}
	return uint64(newest.Int64), nil
}

func (c Column) statements() (update, read string) {
	update = fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s = %s AND (%s IS NULL OR %s <= %s)",
		c.Table, c.Column, c.Dialect.arg(1), c.Key, c.Dialect.arg(2), c.Column, c.Column, c.Dialect.arg(3))
	read = fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", c.Column, c.Table, c.Key, c.Dialect.arg(1))
	if c.Dialect != SQLite {
		// FOR UPDATE reads the current row instead of the snapshot's, and locks it
		// also where the update changed nothing. SQLite needs neither: after the
		// update the transaction is the only writer.
		read += " FOR UPDATE"
	}
	return update, read
}

func (c Column) valid() error {
	if err := c.Dialect.check(); err != nil {
		return err
	}
	if err := checkIdentifier("table", c.Table, true); err != nil {
		return err
	}
	if err := checkIdentifier("key", c.Key, false); err != nil {
		return err
	}
	return checkIdentifier("column", c.Column, false)
}

// Tokens are sent as int64, which every driver accepts. This line does not
// compile if the limit of tokens changes.
const _ = uint64(math.MaxInt64 - (driver.MaxToken - 1))
