package optimistic

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/sqltype"
)

// Rows are the rows of an SQL table of your own that has a version column. T is the type in
// which the program keeps a row.
//
//	accounts := optimistic.Rows[Account]{
//		DB: db, Dialect: fence.MySQL, Table: "accounts", Key: "id", Version: "version",
//		Columns: []string{"balance", "note"},
//		Fields:  func(a *Account) []any { return []any{&a.Balance, &a.Note} },
//	}
//	err := accounts.Update(ctx, 17, func(ctx context.Context, a *Account) error {
//		a.Balance -= 10
//		return nil
//	})
//
// A write is one statement:
//
//	UPDATE accounts SET balance = ?, note = ?, version = version + 1 WHERE id = ? AND version = ?
//
// It is atomic under every isolation level, and no row is locked while the function runs.
// All writers of the table must raise the version.
//
// On MySQL and MariaDB the statement changes nothing if the session's sql_mode is not strict, because the
// server would clip a number that is too large for its column: an UPDATE would not raise the version. It also
// changes nothing if autocommit is off, except in a *sql.Tx or *sql.Conn, where the caller commits. Put and
// Update then return holdfast.ErrRefused.
type Rows[T any] struct {
	// DB is a *sql.DB, or a *sql.Conn or *sql.Tx for Get and Put alone. Required.
	DB Queryer
	// Dialect is required.
	Dialect fence.Dialect
	// Table, Key and Version are names: letters, digits and '_', not beginning with a
	// digit, at most 63 bytes; the table optionally after a schema and a dot. Give the
	// schema if other code may have changed the search path or the default database of a
	// session: the table of another schema has other rows and versions. Key is
	// unique. Version is a column of integers that is never NULL: fractions, times and
	// texts may compare as equal although they differ, and are refused. All are required.
	Table, Key, Version string
	// Columns are the columns that are read and written, at least one.
	Columns []string
	// Fields returns pointers to the fields of the columns, in their order. Required.
	Fields func(*T) []any
	// IsConflict reports that the database has failed a statement because of another
	// writer, so that Update repeats it. Default: SQLSTATE 40001 and 40P01 of errors
	// with a method SQLState() string, as PostgreSQL's have, or a field SQLState of 5 bytes,
	// as those of go-sql-driver/mysql have.
	IsConflict func(error) bool
}

// Queryer contains the methods of *sql.DB, *sql.Conn and *sql.Tx that this package uses.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Get returns a row and its version. Errors wrap [ErrNotExist], holdfast.ErrInvalid, also
// where the version column does not hold integers, or holdfast.ErrUnavailable.
func (r Rows[T]) Get(ctx context.Context, key any) (row T, version int64, err error) {
	if err := r.check(); err != nil {
		return row, 0, err
	}
	rows, err := r.DB.QueryContext(ctx, fmt.Sprintf("SELECT %s, %s FROM %s WHERE %s = %s",
		strings.Join(r.Columns, ", "), r.Version, r.Table, r.Key, r.arg(1)), key)
	if err != nil {
		return row, 0, r.failed(key, err, holdfast.ErrUnavailable)
	}
	defer func() { _ = rows.Close() }() // read to its end, or failed already
	types, err := rows.ColumnTypes()
	if err != nil {
		return row, 0, r.failed(key, err, holdfast.ErrUnavailable)
	}
	if kind := types[len(types)-1].DatabaseTypeName(); !sqltype.Integer(kind) {
		return row, 0, fmt.Errorf("optimistic: %w: column %s of %s has type %s, want an integer type", holdfast.ErrInvalid, r.Version, r.Table, kind)
	}
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return row, 0, r.failed(key, err, holdfast.ErrUnavailable)
		}
		return row, 0, fmt.Errorf("%w: %s", ErrNotExist, r.where(key))
	}
	var at sql.NullInt64
	if err := rows.Scan(append(r.Fields(&row), &at)...); err != nil {
		return row, 0, fmt.Errorf("optimistic: %w: %s: %w", holdfast.ErrInvalid, r.where(key), err)
	}
	if !at.Valid {
		return row, 0, fmt.Errorf("optimistic: %w: %s: column %s is NULL, which no version equals", holdfast.ErrInvalid, r.where(key), r.Version)
	}
	if rows.Next() {
		return row, 0, fmt.Errorf("optimistic: %w: %s is more than one row, so %s is not unique", holdfast.ErrInvalid, r.where(key), r.Key)
	}
	if err := rows.Err(); err != nil {
		return row, 0, r.failed(key, err, holdfast.ErrUnavailable)
	}
	return row, at.Int64, nil
}

// Put writes a row if its version is still the given one, and raises the version by one. If
// DB is a transaction, roll it back after an error. Errors wrap [ErrConflict], also if the
// row no longer exists, [ErrUnknown], or holdfast.ErrInvalid.
func (r Rows[T]) Put(ctx context.Context, key any, row T, version int64) error {
	switch r.DB.(type) {
	case *sql.Tx, *sql.Conn:
		return r.put(ctx, key, row, version, strict)
	}
	return r.put(ctx, key, row, version, strictCommits)
}

// The conditions of a session of MySQL that does not clip values, and that commits each statement.
const (
	strict        = "@@sql_mode LIKE '%STRICT%'"
	strictCommits = strict + " AND @@autocommit = 1"
)

// put is Put. On MySQL it changes nothing in a session without the condition.
func (r Rows[T]) put(ctx context.Context, key any, row T, version int64, session string) error {
	if err := r.check(); err != nil {
		return err
	}
	and := ""
	if r.Dialect == fence.MySQL {
		and = " AND " + session
	}
	var set strings.Builder
	var args []any
	fields := r.Fields(&row)
	if len(fields) != len(r.Columns) {
		return fmt.Errorf("optimistic: %w: %d fields for %d columns", holdfast.ErrInvalid, len(fields), len(r.Columns))
	}
	for i, f := range fields {
		fmt.Fprintf(&set, "%s = %s, ", r.Columns[i], r.arg(i+1))
		args = append(args, reflect.ValueOf(f).Elem().Interface())
	}
	n := len(args)
	// The version changes in any case, so the count of affected rows means the same with
	// all drivers and settings.
	result, err := r.DB.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET %s%s = %s + 1 WHERE %s = %s AND %s = %s%s",
		r.Table, set.String(), r.Version, r.Version, r.Key, r.arg(n+1), r.Version, r.arg(n+2), and), append(args, key, version)...)
	if err != nil {
		return r.failed(key, err, ErrUnknown)
	}
	switch written, err := result.RowsAffected(); {
	case err != nil:
		return r.failed(key, err, ErrUnknown)
	case written == 0 && and != "":
		if err := r.checkSession(ctx, session); err != nil {
			return err
		}
		fallthrough
	case written == 0:
		return fmt.Errorf("%w: %s, version %d", ErrConflict, r.where(key), version)
	case written > 1:
		return fmt.Errorf("optimistic: %w: %s: %d rows were written, so %s is not unique", holdfast.ErrInvalid, r.where(key), written, r.Key)
	}
	return nil
}

// Update changes a row by f. If another write came between, Update calls f again with the newer
// row, until ctx ends. F must have no effect but that on the row. If f fails, Update returns
// its error unchanged and writes nothing. DB must not be a transaction, which may read the same
// old row forever. Errors are those of Get, Put and the function [Update].
func (r Rows[T]) Update(ctx context.Context, key any, f func(context.Context, *T) error, o ...Option) error {
	if _, tx := r.DB.(*sql.Tx); tx {
		return fmt.Errorf("optimistic: %w: Update in a transaction may never see a newer row; give the *sql.DB", holdfast.ErrInvalid)
	}
	return repeat(ctx, fmt.Sprint(key), o, func() error {
		row, version, err := r.Get(ctx, key)
		if err != nil {
			return err
		}
		if err := f(ctx, &row); err != nil {
			return callerError{err}
		}
		return r.put(ctx, key, row, version, strictCommits)
	})
}

// checkSession returns an error if the condition of put is false in a session of the pool.
func (r Rows[T]) checkSession(ctx context.Context, condition string) error {
	rows, err := r.DB.QueryContext(ctx, "SELECT "+condition+", @@sql_mode, @@autocommit")
	if err != nil {
		return nil // Update tries again, and so may find out
	}
	defer func() { _ = rows.Close() }()
	var ok bool
	var mode, autocommit string
	if !rows.Next() || rows.Scan(&ok, &mode, &autocommit) != nil || ok {
		return nil
	}
	return fmt.Errorf("optimistic: %w: nothing was written to %s: the sessions have sql_mode %q and autocommit %s: "+
		"a mode with STRICT_ALL_TABLES is needed, since others clip numbers, and autocommit 1, since others commit nothing", holdfast.ErrRefused, r.Table, mode, autocommit)
}

func (r Rows[T]) check() error {
	if r.DB == nil || r.Fields == nil || len(r.Columns) == 0 {
		return fmt.Errorf("optimistic: %w: Rows needs DB, Columns and Fields", holdfast.ErrInvalid)
	}
	if r.Dialect < fence.MySQL || r.Dialect > fence.SQLite {
		return fmt.Errorf("optimistic: %w: dialect %d, want MySQL, PostgreSQL or SQLite", holdfast.ErrInvalid, int(r.Dialect))
	}
	if !sqltype.Qualified(r.Table) {
		return fmt.Errorf("optimistic: %w: table %q, want letters, digits and '_', optionally after a schema and a dot", holdfast.ErrInvalid, r.Table)
	}
	for _, name := range append([]string{r.Key, r.Version}, r.Columns...) {
		if !sqltype.Name(name) {
			return fmt.Errorf("optimistic: %w: column %q, want letters, digits and '_', not beginning with a digit", holdfast.ErrInvalid, name)
		}
	}
	return nil
}

func (r Rows[T]) arg(n int) string {
	if r.Dialect == fence.PostgreSQL {
		return fmt.Sprintf("$%d", n)
	}
	return "?"
}

func (r Rows[T]) where(key any) string { return fmt.Sprintf("%s %s=%v", r.Table, r.Key, key) }

// failed adds the error that the caller tests for to an error of the database: kind if no other
// one applies.
func (r Rows[T]) failed(key any, err, kind error) error {
	conflict := r.IsConflict
	if conflict == nil {
		// A serialization failure, or a deadlock.
		conflict = func(err error) bool { return sqltype.State(err) == "40001" || sqltype.State(err) == "40P01" }
	}
	switch {
	case conflict(err):
		kind = ErrConflict
	case strings.HasPrefix(sqltype.State(err), "42"), // no such table or column, no rights
		strings.HasPrefix(sqltype.State(err), "22"): // a value that its column does not take
		kind = holdfast.ErrRefused
	}
	return fmt.Errorf("%w: %s: %w", kind, r.where(key), err)
}
