package zkstore

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// errSessionExpired is the error of a session that a server reports as expired. Its nodes may still
// exist (see invalidateSession).
var errSessionExpired = errors.New("the session has expired")

// errNodeDeleted is the error of a grant whose node another client has deleted.
var errNodeDeleted = errors.New("its node was deleted")

// fail returns an error of the client with a code.
func (s *store) fail(err error) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*driver.Error](err); done {
		return err
	}
	if _, busy := errors.AsType[*driver.BusyError](err); busy {
		return err
	}
	if s.calls.Stopped() {
		return errClosed()
	}
	return &driver.Error{Code: codeOf(err), Err: s.reached.Explain(err)}
}

// isBroken reports whether err is the error of a broken node. Other refusals come from the server.
func isBroken(err error) bool {
	e, ok := err.(*driver.Error)
	return ok && e.Code == driver.CodeRefused
}

// codeOf returns the code of an error of package zk.
func codeOf(err error) driver.Code {
	if _, ok := errors.AsType[*zk.LostError](err); ok {
		return driver.CodeUnknown
	}
	answer, _ := errors.AsType[zk.Error](err)
	if _, ok := errors.AsType[*zk.NotSentError](err); ok && answer != zk.ErrAuthFailed {
		return driver.CodeUnavailable
	}
	switch answer {
	case zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrEphemeralParent, zk.ErrLocalSession, zk.ErrSASLRequired, zk.ErrQuotaExceeded:
		return driver.CodeRefused
	case zk.ErrReadOnly, zk.ErrThrottled: // not executed, and temporary
		return driver.CodeUnavailable
	case zk.ErrUnimplemented:
		return driver.CodeUnsupported
	case zk.ErrBadArguments:
		return driver.CodeInvalid
	}
	return driver.CodeUnknown
}

// readFailed returns the error of a read before a request. Nothing was written, so
// CodeUnknown becomes CodeUnavailable. The request can begin again if its session has expired.
func (ss *session) readFailed(err error) error {
	if failed := ss.fail(err); failed == errSessionExpired || driver.CodeOf(failed) != driver.CodeUnknown {
		return failed
	}
	return &driver.Error{Code: driver.CodeUnavailable, Err: err}
}

// unread returns the error of an inspection, which has no unknown outcome either.
func (s *store) unread(err error) error {
	if failed := s.fail(err); driver.CodeOf(failed) != driver.CodeUnknown {
		return failed
	}
	return &driver.Error{Code: driver.CodeUnavailable, Err: err}
}

func errClosed() error { return driver.Errorf(driver.CodeClosed, "the zookeeper store is closed") }

func withdrawn(ctx context.Context) error {
	return &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()}
}

// Classify returns the code of an error.
func (s *store) Classify(err error) driver.Code { return driver.CodeOf(err) }
