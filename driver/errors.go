package driver

import (
	"errors"
	"fmt"
)

// Code says what an error means for the request that got it.
type Code int

const (
	// CodeUnknown: the request may have been applied or may still be. It is the zero
	// Code, and what CodeOf says of an error that carries none.
	CodeUnknown Code = iota
	// CodeBusy: an answered no, for now. Nothing was left behind.
	CodeBusy
	// CodeWithdrawn: the context of an Acquire ended before a grant, and its place, if it
	// had one, was taken back. Nothing was left behind.
	CodeWithdrawn
	// CodeNotHeld: the grant named does not stand.
	CodeNotHeld
	// CodeUnavailable: the store could not be reached; the request was certainly not
	// applied and cannot be later. Asking again may help.
	CodeUnavailable
	// CodeRefused: an answered no for good: missing rights, a read-only replica, a
	// key of another type. Asking again does not help the caller, who is told. A
	// Release or an Undo is asked again all the same: what is refused may stand.
	CodeRefused
	// CodeUnsupported: the store or its layout cannot do this.
	CodeUnsupported
	// CodeInvalid: the request breaks a rule of the store, found before any I/O.
	CodeInvalid
	// CodeClosed: the store has been closed.
	CodeClosed
	// CodeConflict: the value has another version than the one given. Nothing was
	// written. See Values.
	CodeConflict
)

var codeNames = [...]string{
	CodeUnknown: "outcome unknown", CodeBusy: "busy", CodeWithdrawn: "withdrawn", CodeNotHeld: "not held",
	CodeUnavailable: "unavailable", CodeRefused: "refused", CodeUnsupported: "unsupported",
	CodeInvalid: "invalid", CodeClosed: "closed", CodeConflict: "conflict",
}

func (c Code) String() string {
	if c < 0 || int(c) >= len(codeNames) {
		return fmt.Sprintf("Code(%d)", int(c))
	}
	return codeNames[c]
}

// Error is an error that carries its code. A store whose errors are all of this
// kind, or *BusyError, classifies with CodeOf.
type Error struct {
	Code Code
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error that the code was put on.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error as fmt.Errorf makes an error.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// BusyError is an answered no that tells who holds the name.
type BusyError struct{ Holders []Holder }

func (e *BusyError) Error() string {
	if len(e.Holders) == 0 {
		return "busy"
	}
	return "held by " + e.Holders[0].Client()
}

// CodeOf finds the code an error carries; CodeUnknown if none.
func CodeOf(err error) Code {
	// The common answers first, without the cost of a chain walk.
	switch e := err.(type) {
	case *BusyError:
		return CodeBusy
	case *Error:
		return e.Code
	}
	if _, ok := errors.AsType[*BusyError](err); ok {
		return CodeBusy
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeUnknown
}
