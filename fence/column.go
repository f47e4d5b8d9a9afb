package fence

import (
	"context"
	"database/sql"
	"fmt"
	"math"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqltype"
)

// Column guards single rows by an additional column of their table:
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
// On a Galera cluster, or group replication with several primaries, the transaction must also change
// the guarded row. These clusters compare only the rows that a transaction has changed, and Check
// changes nothing if the row has the token already. SQL has no such limit.
//
// # By hand
//
// Where the write is one statement, the column needs no Check:
//
//	UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?
//
// with the token for both fence arguments. The statement is atomic, but if it affects no
// row, there are three possible reasons: the token is stale, the row does not exist, or,
// under MySQL without clientFoundRows, the statement changed nothing. To distinguish them, read
// the column with FOR UPDATE in the same transaction, as Check does. A number larger than the
// token means that the token is stale.
type Column struct {
	// Dialect is required.
	Dialect Dialect
	// Table, Key and Column are names as [SQL] allows for its table: only Table
	// takes a schema. Key has a unique index. Column is a signed 64-bit integer, and
	// Check refuses other types; NULL counts as 0. All three are required.
	Table, Key, Column string
}

// Check returns a [*StaleError] if token is smaller than the token of the row with that key.
// Otherwise it writes token to the row, which stays locked until tx ends. Token has the
// limits of [Guard]. After any error roll tx back.
//
// Errors wrap [ErrStale], [ErrNotExist], [ErrInvalid] or [ErrUnavailable].
func (c Column) Check(ctx context.Context, tx *sql.Tx, key any, token uint64) error {
	resource := c.resource(key)
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
	switch got, err := c.read(ctx, tx, read, key, resource); {
	case err != nil:
		return err
	case got > int64(token):
		return &StaleError{Resource: resource, Token: token, Newest: uint64(got)}
	case got < int64(token):
		// The reason is a trigger, or a column that is too narrow outside of MySQL's strict
		// mode.
		return fmt.Errorf("%w: %s: column %s is %d after it was set to %d", ErrUnavailable, resource, c.Column, got, token)
	}
	return nil
}

// read returns the token of a row. It refuses a column of another type than integers:
// 9 comes after 10 in a text, and fractions round tokens.
func (c Column) read(ctx context.Context, q interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, query string, key any, resource string) (int64, error) {
	failed := func(err error) (int64, error) { return 0, fmt.Errorf("%w: %s: %w", ErrUnavailable, resource, err) }
	rows, err := q.QueryContext(ctx, query, key)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = rows.Close() }() // read to its end, or failed already
	types, err := rows.ColumnTypes()
	if err != nil {
		return failed(err)
	}
	if kind := types[0].DatabaseTypeName(); !sqltype.Integer(kind) {
		return 0, fmt.Errorf("%w: %s: column %s has type %s, want an integer type", ErrInvalid, resource, c.Column, kind)
	}
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return failed(err)
		}
		return 0, fmt.Errorf("%w: %s", ErrNotExist, resource)
	}
	var got sql.NullInt64
	if err := rows.Scan(&got); err != nil {
		return failed(err)
	}
	if rows.Next() {
		return 0, fmt.Errorf("%w: %s is more than one row, so %s is not unique", ErrInvalid, resource, c.Key)
	}
	if err := rows.Err(); err != nil {
		return failed(err)
	}
	return got.Int64, nil
}

// Newest returns the token of the committed row whose key is key, 0 if it has none.
// Errors wrap [ErrNotExist], [ErrInvalid] or [ErrUnavailable].
func (c Column) Newest(ctx context.Context, db *sql.DB, key any) (uint64, error) {
	if err := c.valid(); err != nil {
		return 0, err
	}
	newest, err := c.read(ctx, db, fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", c.Column, c.Table, c.Key, c.Dialect.arg(1)), key, c.resource(key))
	return uint64(newest), err
}

// resource returns the name of the row whose key is key, for errors.
func (c Column) resource(key any) string {
	if b, ok := key.([]byte); ok {
		return fmt.Sprintf("%s %s=%q", c.Table, c.Key, b)
	}
	return fmt.Sprintf("%s %s=%v", c.Table, c.Key, key)
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
