package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqltype"
)

// Dialect is the kind of a database.
type Dialect int

// The dialects.
const (
	// MySQL is MySQL 5.7 or later, and MariaDB, with InnoDB.
	MySQL Dialect = iota + 1
	// PostgreSQL is PostgreSQL 9.5 or later.
	PostgreSQL
	// SQLite is SQLite 3.35 or later.
	SQLite
)

func (d Dialect) String() string {
	switch d {
	case MySQL:
		return "MySQL"
	case PostgreSQL:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// DefaultTable is the table of [SQL] unless another is set.
const DefaultTable = "holdfast_fence"

// SQL guards rows of a database by a table of tokens, one row per resource. The token changes
// in the same transaction as the caller's own rows.
//
//	guard := fence.SQL{Dialect: fence.PostgreSQL}
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	if err := guard.Check(ctx, tx, "invoices", lock.Token()); err != nil {
//		return err
//	}
//	// read and write invoices with tx
//	return tx.Commit()
//
// The table must be in the database whose rows it guards; [SQL.Schema] creates it.
// The guard never removes rows: after a row is deleted, every old token can write
// again.
//
// # Why it is atomic
//
// Check writes the resource's row, and so holds its row lock until the
// transaction ends, even if the row already had this token. A concurrent
// transaction of the resource waits in its own Check. After a commit it finds
// the raised token. After a rollback it finds the earlier token and the earlier
// rows. So the transactions of one resource run one after the other, and the
// tokens of committed transactions never decrease. Check does not use the count of
// affected rows, because its meaning depends on the driver and its settings.
//
// Call Check first in the transaction: under REPEATABLE READ, earlier reads may
// be older than the lock. Do not run statements that commit implicitly (DDL in
// MySQL) after it. Every isolation level is safe.
//
// Under REPEATABLE READ and SERIALIZABLE, Check may return another error than ErrStale.
// PostgreSQL may end a transaction that had to wait with SQLSTATE 40001. MySQL may choose one
// of several first writers of a resource as the victim of a deadlock (1213). SQLite returns
// SQLITE_BUSY when another writer was faster. Check wraps such an error together with
// [ErrUnavailable]. Nothing was written, and the caller can retry the whole transaction.
type SQL struct {
	// Dialect is required.
	Dialect Dialect
	// Table is the name of the table of tokens: letters, digits and '_', not
	// beginning with a digit, at most 63 bytes, optionally after a schema's name
	// and a dot. It is used unquoted. Without a schema it is the table that the
	// transaction's own statements would find. If other code may have changed the
	// search path or the default database of the session, give the schema, here and in
	// those statements. Default: [DefaultTable].
	Table string
}

// Schema returns the statement that creates the table unless it exists. Errors
// wrap [ErrInvalid].
func (s SQL) Schema() (string, error) {
	table, err := s.table()
	if err != nil {
		return "", err
	}
	switch s.Dialect {
	case MySQL:
		// Only InnoDB has row locks and rollback. VARBINARY, because text columns
		// ignore case or trailing spaces in comparisons.
		return `CREATE TABLE IF NOT EXISTS ` + table + ` (
	resource VARBINARY(512) NOT NULL PRIMARY KEY,
	token    BIGINT NOT NULL,
	checks   BIGINT NOT NULL DEFAULT 0
) ENGINE=InnoDB`, nil
	case PostgreSQL:
		// Every check writes a new version of its row. Free space on the page keeps
		// these versions out of the index.
		return `CREATE TABLE IF NOT EXISTS ` + table + ` (
	resource BYTEA NOT NULL PRIMARY KEY,
	token    BIGINT NOT NULL
) WITH (fillfactor = 50)`, nil
	default:
		return `CREATE TABLE IF NOT EXISTS ` + table + ` (
	resource BLOB NOT NULL PRIMARY KEY,
	token    INTEGER NOT NULL
) WITHOUT ROWID`, nil
	}
}

// CreateTable runs the statement of [SQL.Schema]. Any number of clients may call it at the same time. Errors
// wrap [ErrInvalid] or [ErrUnavailable].
func (s SQL) CreateTable(ctx context.Context, db *sql.DB) error {
	schema, err := s.Schema()
	if err != nil {
		return err
	}
	if err := sqltype.Create(ctx, func() error { _, err := db.ExecContext(ctx, schema); return err }); err != nil {
		return fmt.Errorf("%w: create table %s: %w", ErrUnavailable, s.name(), err)
	}
	return nil
}

// Check refuses a token smaller than the largest one seen for resource with a [*StaleError].
// Otherwise the guard remembers the token if tx is committed. Check waits for other
// transactions that have checked the same resource, until ctx or the server's lock timeout
// ends. After any error, roll tx back.
//
// Resource and token have the limits of [Guard]. Errors wrap [ErrStale],
// [ErrInvalid] or [ErrUnavailable].
func (s SQL) Check(ctx context.Context, tx *sql.Tx, resource string, token uint64) error {
	table, err := s.table()
	if err != nil {
		return err
	}
	if err := CheckArguments(ctx, resource, token); err != nil {
		return err
	}
	newest, err := s.raise(ctx, tx, table, []byte(resource), int64(token))
	if err != nil {
		return s.unavailable(resource, err)
	}
	switch {
	case newest > int64(token):
		return &StaleError{Resource: resource, Token: token, Newest: uint64(newest)}
	case newest < int64(token):
		// A table of other types, outside of MySQL's strict mode, or a trigger.
		return fmt.Errorf("%w: %q: the token in table %s is %d after it was set to %d", ErrUnavailable, resource, table, newest, token)
	}
	return nil
}

// unavailable returns the error of a statement for a resource, with the remedy for a missing table.
func (s SQL) unavailable(resource string, err error) error {
	state := sqltype.State(err)
	if state == "42P01" || state == "42S02" || s.Dialect == SQLite && strings.Contains(err.Error(), "no such table") {
		err = fmt.Errorf("%w: CreateTable of fence.SQL creates the table %s", err, s.name())
	}
	return fmt.Errorf("%w: %q: %w", ErrUnavailable, resource, err)
}

// raise sets the row's token to the larger of the two, keeps the row locked, and returns the
// row's token.
func (s SQL) raise(ctx context.Context, tx *sql.Tx, table string, resource []byte, token int64) (newest int64, err error) {
	switch s.Dialect {
	case MySQL:
		// checks makes every call a change. A Galera cluster does not certify a row that was
		// only locked. So two nodes could commit an equal and a larger token in the wrong
		// order.
		_, err = tx.ExecContext(ctx, `INSERT INTO `+table+` (resource, token) VALUES (?, ?)
			ON DUPLICATE KEY UPDATE token = GREATEST(token, ?), checks = checks + 1`,
			resource, token, token)
		if err != nil {
			return 0, err
		}
		// FOR UPDATE reads the current row, not the row of the transaction's
		// snapshot.
		err = tx.QueryRowContext(ctx, `SELECT token FROM `+table+` WHERE resource = ? FOR UPDATE`, resource).Scan(&newest)
	case PostgreSQL:
		// The update has no WHERE: with one, a smaller token would return no row, and
		// a second query would have to find the reason.
		err = tx.QueryRowContext(ctx, `INSERT INTO `+table+` AS f (resource, token) VALUES ($1, $2)
			ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token)
			RETURNING token`, resource, token).Scan(&newest)
	default:
		err = tx.QueryRowContext(ctx, `INSERT INTO `+table+` AS f (resource, token) VALUES (?, ?)
			ON CONFLICT (resource) DO UPDATE SET token = max(f.token, excluded.token)
			RETURNING token`, resource, token).Scan(&newest)
	}
	return newest, err
}

// Newest returns the largest token of resource that was committed, or 0 if there
// was none. It is for people and tests: by the time it returns there may be a
// larger one. Errors wrap [ErrInvalid] or [ErrUnavailable].
func (s SQL) Newest(ctx context.Context, db *sql.DB, resource string) (uint64, error) {
	table, err := s.table()
	if err != nil {
		return 0, err
	}
	if err := checkResource(resource); err != nil {
		return 0, err
	}
	var newest int64
	err = db.QueryRowContext(ctx, `SELECT token FROM `+table+` WHERE resource = `+s.Dialect.arg(1), []byte(resource)).Scan(&newest)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, s.unavailable(resource, err)
	}
	return uint64(newest), nil
}

func (s SQL) name() string {
	if s.Table == "" {
		return DefaultTable
	}
	return s.Table
}

func (s SQL) table() (string, error) {
	if err := s.Dialect.check(); err != nil {
		return "", err
	}
	return s.name(), checkIdentifier("table", s.name(), true)
}

func (d Dialect) check() error {
	if d < MySQL || d > SQLite {
		return fmt.Errorf("%w: dialect %d, want MySQL, PostgreSQL or SQLite", ErrInvalid, int(d))
	}
	return nil
}

// arg returns the placeholder of argument n, counted from 1.
func (d Dialect) arg(n int) string {
	if d == PostgreSQL {
		return fmt.Sprintf("$%d", n)
	}
	return "?"
}

// checkIdentifier validates a name that becomes part of a statement.
func checkIdentifier(what, name string, schema bool) error {
	valid, hint := sqltype.Name(name), ""
	if schema {
		valid, hint = sqltype.Qualified(name), ", optionally after a schema and a dot"
	}
	if !valid {
		return fmt.Errorf("%w: %s %q, want 1 to 63 letters, digits and '_', not beginning with a digit%s", ErrInvalid, what, name, hint)
	}
	return nil
}
