package pgstore

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// stater is an error with an SQLSTATE, as pgx and lib/pq return it.
type stater interface {
	error
	SQLState() string
}

func state(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[stater](err); ok {
		return e.SQLState()
	}
	return ""
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
	switch code := state(err); code {
	case "40001", "40P01", "55P03": // serialization, deadlock, lock not available
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, true
	case "53300": // too many connections
		return driver.Errorf(driver.CodeUnavailable, "%w: %w", sqlkit.ErrTooMany, err), false
	case "53400", "57P03", "57014": // a limit, starting up; the statement was cancelled, and so did nothing
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, false
	case "42P01", "42703", "42P07": // no such table, or column
		return driver.Errorf(driver.CodeRefused, "%w: run holdfast init URL, or Init, to create holdfast's tables", err), false
	case "42704":
		if strings.Contains(err.Error(), "configuration parameter") { // of the URL
			return &driver.Error{Code: driver.CodeInvalid, Err: err}, false
		}
		return &driver.Error{Code: driver.CodeRefused, Err: err}, false
	case "42501", "25006", "28000", "28P01", "3D000", "3F000", "42601", "42883", "22023", "0A000":
		return &driver.Error{Code: driver.CodeRefused, Err: err}, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
}

// unreached returns an error of opening a connection with a code: no lock was requested.
func unreached(err error) error { return sqlkit.Unreached(faults{}, err) }
