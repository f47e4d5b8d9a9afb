//go:build !linux && !darwin

package proc

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// Group is a running command.
type Group struct{}

// Section is a process that holdfast has not started. No section exists on this system.
type Section struct{ Group }

// Attach returns an error on this system.
func Attach(int) (*Section, error) { return nil, unsupported() }

// Terminal is the controlling terminal.
type Terminal struct{}

// Guardian is the process that holds the lock and starts the command.
type Guardian struct{ PID int }

// StepArg is not used on this system.
const StepArg = "exec-command"

func unsupported() error {
	// This system has no process groups that control a command.
	return fmt.Errorf("holdfast run needs Linux or macOS, not %s", runtime.GOOS)
}

// StartGuardian returns an error on this system.
func StartGuardian(string) (*Guardian, *os.File, error) { return nil, nil, unsupported() }

// Become returns an error on this system.
func Become(string) (*os.File, error) { return nil, unsupported() }

// Start returns an error on this system.
func Start(c Command, _ *Terminal) (*Group, error) { return nil, notRunnable(c.Args[0], unsupported()) }

func (*Guardian) Ended() <-chan struct{}           { return nil }
func (*Guardian) Status() Status                   { return Status{} }
func (*Guardian) Signal(syscall.Signal)            {}
func (*Guardian) KillTree(int) []Process           { return nil }
func (*Guardian) KillOrphans(int) (int, []Process) { return 0, nil }

func (*Group) PID() int                                    { return 0 }
func (*Group) Stopped() <-chan syscall.Signal              { return nil }
func (*Group) Ended() <-chan struct{}                      { return nil }
func (*Group) Reap()                                       {}
func (*Group) Left() <-chan struct{}                       { return nil }
func (*Group) Gone() <-chan struct{}                       { return nil }
func (*Group) Status() Status                              { return Status{} }
func (*Group) Signal(syscall.Signal) error                 { return nil }
func (*Group) SignalAll(syscall.Signal) ([]Process, error) { return nil, nil }
func (*Group) SignalLeavers(syscall.Signal) []Process      { return nil }

func OpenTerminal(int) *Terminal       { return nil }
func (*Terminal) Wanted(int) bool      { return false }
func (*Terminal) Lend(int) bool        { return false }
func (*Terminal) TakeBack() bool       { return false }
func (*Terminal) Reclaim()             {}
func (*Terminal) SaveModes()           {}
func (*Terminal) RestoreModes()        {}
func Blind() bool                      { return false }
func IgnoreOutputStops()               {}
func CloseInherited()                  {}
func Detach(int)                       {}
func Step([]string) int                { return 1 }
func Suspend(syscall.Signal) bool      { return false }
func ProcessGroup() int                { return 0 }
func Boottime() int64                  { return 0 }
func signalName(syscall.Signal) string { return "" }
