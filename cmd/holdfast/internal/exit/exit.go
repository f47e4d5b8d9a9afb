// Package exit contains the command's exit statuses. Some are those of sysexits.h, and the others
// are those of a shell.
package exit

import (
	"errors"
	"syscall"

	"github.com/holdfast-go/holdfast"
)

// The exit statuses.
const (
	OK            = 0
	Output        = 1  // the output could not be written, for example on a full disk
	Usage         = 64 // EX_USAGE: bad usage
	Unavailable   = 69 // EX_UNAVAILABLE: the store cannot be reached
	Lost          = 74 // EX_IOERR: the lock was lost while the command ran
	Busy          = 75 // EX_TEMPFAIL: not acquired
	Refused       = 78 // EX_CONFIG: the store refused, or does not support the request
	NotExecutable = 126
	NotFound      = 127
)

// BySignal returns the status that a shell reports for a process that a signal killed.
func BySignal(s syscall.Signal) int { return 128 + int(s) }

// Of returns the status for an error of the library; busy is the status for ErrBusy.
func Of(err error, busy int) int {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, holdfast.ErrLost):
		return Lost
	case errors.Is(err, holdfast.ErrBusy):
		return busy
	case errors.Is(err, holdfast.ErrInvalid):
		return Usage
	case errors.Is(err, holdfast.ErrRefused), errors.Is(err, holdfast.ErrUnsupported):
		return Refused
	}
	return Unavailable
}
