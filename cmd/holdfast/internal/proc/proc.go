// Package proc runs one command as a process group of its own, with the terminal
// if there is one, and tells how it stops and ends. It knows nothing of locks.
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

// Command is what to run. Its standard streams are those of this process.
type Command struct {
	Path string   // the file
	Args []string // with the name as the user gave it first
	Env  []string
}

// NotRunnable says why a command cannot be run, and the status that a shell
// exits with then.
type NotRunnable struct {
	Name   string
	Status int
	Err    error
}

func (e *NotRunnable) Error() string { return fmt.Sprintf("cannot run %s: %v", e.Name, e.Err) }

// Unwrap returns what the system said.
func (e *NotRunnable) Unwrap() error { return e.Err }

// Look finds the file of a command as a shell does, so that nobody waits an hour
// for a lock to learn of a misspelt name.
func Look(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // who has "." in PATH wants it
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

// inPath looks for a file that LookPath passed over.
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

// Status is how a command ended.
type Status struct {
	Code   int            // the exit status, if it exited
	Signal syscall.Signal // what killed it, or 0
}

// Shell is the status as a shell reports it.
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

// Process is one that could not be signalled.
type Process struct {
	PID  int
	Name string
}

func (p Process) String() string { return fmt.Sprintf("pid %d (%s)", p.PID, p.Name) }

// GuardianArg, as the first argument, makes this program the guardian of a run.
const GuardianArg = "run-guardian"

// SignalName is the signal's usual name.
func SignalName(s syscall.Signal) string {
	if name := signalName(s); name != "" {
		return name
	}
	return strings.ToUpper(s.String())
}
