package mysqlstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// Error numbers. Most are the same in MySQL and MariaDB. The groups follow the cases of Sort.
const (
	// A retry may succeed.
	errRowChanged   = 1020 // MariaDB: another transaction has changed the row meanwhile
	errLockWait     = 1205
	errDeadlock     = 1213
	errUserDeadlock = 3058 // MySQL: deadlock of GET_LOCK
	errNotCertified = 3101 // MySQL: a replication group has not certified the commit
	errNoWait       = 3572 // MySQL: NOWAIT; MariaDB returns errLockWait

	// Errors with a code or a text of their own.
	errNoTable       = 1146
	errNoColumn      = 1054
	errNoVariable    = 1193 // a parameter of the URL that neither the driver nor the server has
	errOption        = 1290 // an option of the server forbids the statement: read_only, or another one
	errReadOnlyMode  = 1836
	errTooMany       = 1040
	errTooManyOfUser = 1203
	errNotReady      = 1047 // Galera: the node has no quorum
	errLimitOfUser   = 1226 // a limit of the user, such as its connections in one hour

	// Errors that the callers handle. Sort returns CodeUnknown for them.
	errDuplicate     = 1062
	errInTransaction = 1568
	errBadText       = 1366
	errTooLong       = 1406
	errKilled        = 1927 // MariaDB: KILL of the connection
	errStatementTime = 1969 // MariaDB: max_statement_time
)

// isError reports whether an error is one of the server, with one of the numbers.
func isError(err error, numbers ...uint16) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains(numbers, my.Number)
}

// refused contains the other errors that a retry does not fix.
var refused = map[uint16]bool{
	// Missing rights and schemas.
	1044: true, // no right to the schema
	1045: true, // wrong user or password
	1049: true, // no such schema
	1130: true, // no right to connect from this host
	1142: true, // no right to the table
	1143: true, // no right to the column
	1227: true, // no right to this kind of statement
	1370: true, // no right to the function
	1698: true, // wrong user or login method

	errOption: true, // not read_only: Sort checks that first
	1792:      true, // the transaction is read-only
	1064:      true, // a syntax error: a server of another version

	// The server does not accept the table, for example because of its engine.
	1728: true, // the table cannot be loaded
	3098: true, // MySQL: group replication does not allow the table
	4165: true, // MariaDB: Galera does not support the table

	// The format of the binary log does not allow the statement or the engine.
	1661: true, 1662: true, 1663: true, 1664: true, 1665: true,

	// A user's table does not accept a row with the name alone.
	1048: true, // a column is NOT NULL
	1364: true, // a column has no default
	1452: true, // a foreign key
	3819: true, // MySQL: a CHECK
	4025: true, // MariaDB: a CHECK
}

// faults implements sqlkit.Faults.
type faults struct{}

// Sort returns err with a code, and reports whether a retry may succeed.
func (faults) Sort(err error) (coded error, retry bool) {
	if err == nil {
		return nil, false
	}
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err, false
	}
	my, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
	}
	switch my.Number {
	case errRowChanged, errLockWait, errDeadlock, errUserDeadlock, errNotCertified, errNoWait:
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, true
	case errNoTable:
		return driver.Errorf(driver.CodeRefused, "%w: run holdfast init URL, or Init, to create holdfast's tables", err), false
	case errNoColumn:
		return driver.Errorf(driver.CodeRefused, "%w: if the table is holdfast's, it is of another version: run holdfast init URL, or Init", err), false
	case errNoVariable:
		return &driver.Error{Code: driver.CodeInvalid, Err: err}, false
	case errTooMany, errTooManyOfUser:
		return driver.Errorf(driver.CodeUnavailable, "%w: %w", sqlkit.ErrTooMany, err), false
	case errNotReady, errLimitOfUser:
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, false
	}
	switch {
	case readOnly(my):
		return fmt.Errorf("%w: %w", sqlkit.ErrReadOnly, err), false
	case refused[my.Number]:
		return &driver.Error{Code: driver.CodeRefused, Err: err}, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
}

// readOnly reports whether err is the error of a read-only server. The message of errOption names
// the option.
func readOnly(err *mysql.MySQLError) bool {
	switch err.Number {
	case errOption:
		return strings.Contains(err.Message, "read_only") || strings.Contains(err.Message, "read-only")
	case errReadOnlyMode:
		return true
	}
	return false
}

// unreached returns an error of opening a connection with a code. No lock was requested yet, so no
// outcome is unknown.
func unreached(err error) error { return sqlkit.Unreached(faults{}, err) }
