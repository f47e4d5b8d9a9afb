package driver

import (
	"errors"
	"fmt"
	"time"
)

// Code is what an error means for its request.
type Code int

const (
	// CodeUnknown: the request may have been applied, or may still be. It is the zero Code,
	// and the result of CodeOf for an error without a code.
	CodeUnknown Code = iota
	// CodeBusy: the name is held. Nothing was left behind.
	CodeBusy
	// CodeWithdrawn: the context of an Acquire ended before a grant, and its queue entry, if
	// it had one, was removed. Nothing was left behind.
	CodeWithdrawn
	// CodeNotHeld: the grant does not stand.
	CodeNotHeld
	// CodeUnavailable: the store could not be reached. The request was certainly not applied
	// and cannot be later. A retry may help.
	CodeUnavailable
	// CodeRefused: the store refuses the request: missing rights, a read-only replica, a key of
	// another type. The caller gets the error, since a retry does not help. The core still
	// retries a Release or an Undo, because the grant or the entry may still stand.
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

// Error is an error with a code. A store whose errors are all Errors or BusyErrors classifies
// with CodeOf.
type Error struct {
	Code Code
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error without its code.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error with a formatted error.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Broken returns the error of code CodeRefused for a record that no client of this store has
// written. A store returns it from each call that needs the record, before it changes anything,
// and List yields it in State.Err. record is where the record is: a key, a path or a row. why is
// what is wrong with it. The text quotes both, because they may come from another program.
func Broken(record, why string) error {
	return Errorf(CodeRefused, "the record %q is broken, or another program has written it: %q", record, why)
}

// NotHeld returns the error of code CodeNotHeld for a grant that does not exist, or exists no more.
func NotHeld(name string, token uint64) error {
	return Errorf(CodeNotHeld, "no grant of %q with token %d exists", name, token)
}

// BusyError is the error for a name that is held, with its holders if they are known.
type BusyError struct {
	Holders []Holder
	// Retry is when a repetition of the request is useful, if that is sooner than the core would repeat it; 0: unknown.
	Retry time.Duration
}

func (e *BusyError) Error() string {
	if len(e.Holders) == 0 {
		return "busy"
	}
	return "held by " + e.Holders[0].Client()
}

// CodeOf returns the code of an error, CodeUnknown if it has none.
func CodeOf(err error) Code {
	// The common cases come first, because a walk along the chain of errors costs more.
	switch e := err.(type) {
	case *BusyError:
		return CodeBusy
	case *Error:
		return e.Code
	}
	if e, ok := errors.AsType[coded](err); ok { // the outermost one
		return e.code()
	}
	return CodeUnknown
}

// coded is an error with a code.
type coded interface {
	error
	code() Code
}

func (e *Error) code() Code   { return e.Code }
func (*BusyError) code() Code { return CodeBusy }
