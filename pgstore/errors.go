package pgstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/sqltype"
)

// sqlState returns the SQLSTATE of an error, empty if it has none.
func sqlState(err error) string { return sqltype.State(err) }

// The SQLSTATEs that the store distinguishes.
const (
	protocolViolation        = "08P01" // also of a pooler
	invalidParameterValue    = "22023"
	readOnlyTransaction      = "25006"
	idleInTransactionTimeout = "25P03"
	transactionTimeout       = "25P04"
	invalidAuthorization     = "28000"
	invalidPassword          = "28P01"
	noSuchDatabase           = "3D000"
	noSuchSchema             = "3F000"
	serializationFailure     = "40001"
	deadlockDetected         = "40P01"
	insufficientPrivilege    = "42501"
	syntaxError              = "42601"
	noSuchColumn             = "42703"
	noSuchObject             = "42704" // for example a configuration parameter
	noSuchFunction           = "42883"
	noSuchTable              = "42P01"
	tooManyConnections       = "53300"
	limitExceeded            = "53400"
	lockNotAvailable         = "55P03"
	queryCanceled            = "57014"
	adminShutdown            = "57P01" // also after pg_terminate_backend
	crashShutdown            = "57P02"
	startingUp               = "57P03"
	idleSessionTimeout       = "57P05"
	featureNotSupported      = "0A000"
)

type faults struct{}

// Sort returns err with a code, and reports whether a retry may succeed.
func (faults) Sort(err error) (coded error, retry bool) {
	if err == nil {
		return nil, false
	}
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err, false
	}
	switch sqlState(err) {
	case serializationFailure, deadlockDetected, lockNotAvailable:
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, true
	case tooManyConnections:
		return driver.Errorf(driver.CodeUnavailable, "%w: %w", sqlkit.ErrTooMany, err), false
	case limitExceeded, startingUp, queryCanceled: // a cancelled statement has done nothing
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, false
	case noSuchTable, noSuchColumn:
		return driver.Errorf(driver.CodeRefused, "%w: run holdfast init URL, or Init, to create holdfast's tables", err), false
	case noSuchObject:
		if strings.Contains(err.Error(), "configuration parameter") { // of the URL
			return &driver.Error{Code: driver.CodeInvalid, Err: err}, false
		}
		return &driver.Error{Code: driver.CodeRefused, Err: err}, false
	case protocolViolation:
		if strings.Contains(err.Error(), "startup parameter") { // of the URL
			return &driver.Error{Code: driver.CodeInvalid, Err: err}, false
		}
	case insufficientPrivilege, readOnlyTransaction, invalidAuthorization, invalidPassword, noSuchDatabase, noSuchSchema,
		syntaxError, noSuchFunction, invalidParameterValue, featureNotSupported:
		return &driver.Error{Code: driver.CodeRefused, Err: err}, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
}

// rowFaults are the faults of Optimistic and of values, which leave a server that has become read-only. Sessions make
// their own transactions writable.
type rowFaults struct{ faults }

func (f rowFaults) Sort(err error) (error, bool) {
	coded, retry := f.faults.Sort(err)
	if sqlState(err) == readOnlyTransaction {
		return fmt.Errorf("%w: %w", sqlkit.ErrReadOnly, err), false
	}
	return coded, retry
}

// unreached returns an error of opening a connection with a code: no lock was requested.
func unreached(err error) error { return sqlkit.Unreached(faults{}, err) }
