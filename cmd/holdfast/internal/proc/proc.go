// Package proc runs one command in a process group of its own, gives it the terminal if there is
// one, and reports when it stops or ends. It also starts the guardian, and waits for processes
// that this process did not start. It requests no lock and releases none.
package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
)

// Command is the command to run. Its standard streams are those of this process.
type Command struct {
	Path string   // the file
	Args []string // the first is the name as the user gave it
	Env  []string

	// OwnPID names the variables of Env that the command gets with the number of its own process.
	OwnPID []string
}

// NotRunnable is the error of a command that cannot be run. Status is the exit status of a shell
// in that case.
type NotRunnable struct {
	Name   string
	Status int
	Err    error
}

func (e *NotRunnable) Error() string { return fmt.Sprintf("cannot run %s: %v", e.Name, e.Err) }

// Unwrap returns the system's error.
func (e *NotRunnable) Unwrap() error { return e.Err }

// FindCommand returns the file of a command. It searches like a shell. The caller calls it before it
// waits for a lock, so that a misspelt name is an error at once.
func FindCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // a PATH that contains "." requests this
		return path, nil
	case errors.Is(err, exec.ErrNotFound) && inPath(name):
		return "", &NotRunnable{name, exit.NotExecutable, errors.New("found in PATH, but it is not executable")}
	}
	var reason *exec.Error
	if errors.As(err, &reason) {
		err = reason.Err
	}
	return "", notRunnable(name, err)
}

// inPath reports whether a directory of PATH contains the file. LookPath skips a file that is not
// executable.
func inPath(name string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

func notRunnable(name string, err error) *NotRunnable {
	e := &NotRunnable{Name: name, Status: exit.NotExecutable, Err: err}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		e.Status, e.Err = exit.NotFound, errors.New("not found in PATH")
	case errors.Is(err, fs.ErrNotExist):
		e.Status, e.Err = exit.NotFound, errors.New("no such file, or the interpreter it names is missing")
	case errors.Is(err, syscall.ENOEXEC):
		e.Err = fmt.Errorf("%w: does a script lack its #! line?", err)
	}
	return e
}

// Status describes how a command ended.
type Status struct {
	Code   int            // the exit status, if it exited
	Signal syscall.Signal // the signal that killed it, or 0
}

// Shell returns the status as a shell reports it.
func (s Status) Shell() int {
	if s.Signal != 0 {
		return exit.BySignal(s.Signal)
	}
	return s.Code
}

func (s Status) String() string {
	if s.Signal != 0 {
		return "killed by " + SignalName(s.Signal)
	}
	return fmt.Sprintf("exit status %d", s.Code)
}

// Process is a process that this process has no right to signal.
type Process struct {
	PID  int
	Name string
}

func (p Process) String() string { return fmt.Sprintf("pid %d (%s)", p.PID, p.Name) }

// GuardianArg, as the first argument, makes this program the guardian of a run.
const GuardianArg = "run-guardian"

// Interrupted is the error of a wait, a request or a subcommand that this signal has ended.
type Interrupted syscall.Signal

func (e Interrupted) Error() string { return "ended by " + SignalName(syscall.Signal(e)) }

// SignalName returns the signal's usual name.
func SignalName(s syscall.Signal) string {
	if name := signalName(s); name != "" {
		return name
	}
	return strings.ToUpper(s.String())
}
