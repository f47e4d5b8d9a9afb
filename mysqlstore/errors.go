package mysqlstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// Error numbers. Most are the same in MySQL and MariaDB.
const (
	errTooMany       = 1040
	errNoSchema      = 1049
	errNoColumn      = 1054
	errBadText       = 1366
	errTooLong       = 1406
	errNoTable       = 1146
	errNoVariable    = 1193 // a parameter of the URL that neither the driver nor the server has
	errLockWait      = 1205
	errDeadlock      = 1213
	errKilled        = 1927 // MariaDB: KILL of the connection
	errStatementTime = 1969 // MariaDB: max_statement_time
	errNotLocked8    = 3572 // MySQL: NOWAIT; MariaDB returns errLockWait
	errUserLockLoop8 = 3058 // MySQL: deadlock of GET_LOCK
	errRolledBack8   = 3101 // MySQL: a replication group has not certified the commit
)

// refused has the errors that a retry does not fix.
var refused = map[uint16]bool{
	1044: true, 1045: true, errNoSchema: true, 1130: true, 1142: true, 1143: true, errNoTable: true, 1227: true, 1370: true, 1698: true, // missing rights, schemas and tables
	1290: true, 1792: true, 1836: true, // read-only
	1064: true,                         // a server of another version
	1728: true, 3098: true, 4165: true, // the engine is not allowed here
	1661: true, 1662: true, 1663: true, 1664: true, 1665: true, // the format of the binary log does not allow it
	1048: true, 1364: true, 1452: true, 3819: true, 4025: true, // a user's table does not accept a row with the name alone
}

type faults struct{}

// Sort returns an error of a connection with a code.
func (faults) Sort(err error) (error, bool) {
	if err == nil {
		return nil, false
	}
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err, false
	}
	my, ok := errors.AsType[*mysql.MySQLError](err)
	switch {
	case !ok:
		return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
	case my.Number == errLockWait || my.Number == errDeadlock || my.Number == errNotLocked8 || my.Number == errUserLockLoop8 || my.Number == errRolledBack8 || my.Number == 1020:
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, true
	case my.Number == errNoVariable:
		return &driver.Error{Code: driver.CodeInvalid, Err: err}, false
	case my.Number == errNoTable:
		return driver.Errorf(driver.CodeRefused, "%w: run holdfast init URL, or Init, to create holdfast's tables", err), false
	case my.Number == errNoColumn:
		return driver.Errorf(driver.CodeRefused, "%w: if the table is holdfast's, it is of another version: run holdfast init URL, or Init", err), false
	case readOnly(my):
		return fmt.Errorf("%w: %w", sqlkit.ErrReadOnly, err), false
	case refused[my.Number]:
		return &driver.Error{Code: driver.CodeRefused, Err: err}, false
	case my.Number == errTooMany || my.Number == 1203:
		return driver.Errorf(driver.CodeUnavailable, "%w: %w", sqlkit.ErrTooMany, err), false
	case my.Number == 1226 || my.Number == 1047:
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
}

// readOnly reports whether err is the error of a read-only server. Error 1290 is also the
// error of other settings, which its message names.
func readOnly(err *mysql.MySQLError) bool {
	switch err.Number {
	case 1290:
		return strings.Contains(err.Message, "read_only") || strings.Contains(err.Message, "read-only")
	case 1836:
		return true
	}
	return false
}

// unreached returns an error of opening a connection with a code: no lock was requested.
func unreached(err error) error { return sqlkit.Unreached(faults{}, err) }
