//go:build !linux && !darwin

package proc

import (
	"fmt"
	"runtime"
	"syscall"
)

// Group is a running command.
type Group struct{}

// Terminal is the controlling terminal.
type Terminal struct{}

// ForegroundArg is not used on this system.
const ForegroundArg = "exec-in-foreground"

// Start answers an error on this system: it has no process groups to keep a
// command under control with.
func Start(c Command, _ *Terminal) (*Group, error) {
	return nil, notRunnable(c.Args[0], fmt.Errorf("holdfast run needs Linux or macOS, not %s", runtime.GOOS))
}

func (*Group) Stopped() <-chan syscall.Signal { return nil }
func (*Group) Ended() <-chan struct{}         { return nil }
func (*Group) Reap()                          {}
func (*Group) Gone() <-chan struct{}          { return nil }
func (*Group) Status() Status                 { return Status{} }
func (*Group) Signal(syscall.Signal) error    { return nil }

func OpenTerminal() *Terminal          { return nil }
func (*Terminal) Wanted(*Group) bool   { return false }
func (*Terminal) Lend(*Group) bool     { return false }
func (*Terminal) TakeBack() bool       { return false }
func (*Terminal) RestoreModes()        {}
func IgnoreOutputStops()               {}
func Foreground([]string) int          { return 1 }
func Suspend(syscall.Signal) bool      { return false }
func signalName(syscall.Signal) string { return "" }
