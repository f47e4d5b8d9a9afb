//go:build linux || darwin

package proc

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Guardian is a second process of this program, in a process group of its own and
// the same session, which a signal to this one, or a key pressed at the terminal,
// does not reach.
type Guardian struct {
	PID     int
	foreign map[int]bool
	ended   chan struct{}
	status  Status // set before ended is closed
}

// StartGuardian starts it, for the name, with one end of a pair of sockets. The
// other end is answered, and reads as ended when the guardian does. This process
// gets the guardian's orphans, and reaps whatever children it has.
func StartGuardian(name string) (*Guardian, *os.File, error) {
	exe, err := self()
	if err != nil {
		return nil, nil, err
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, nil, err
	}
	g := &Guardian{foreign: foreign(), ended: make(chan struct{})}
	adoptOrphans()
	// Above what the user may have given the command: it was the lowest free one.
	_, err = unix.FcntlInt(uintptr(theirs), unix.F_SETFD, 0)
	if err == nil {
		g.PID, err = forkExec(exe, []string{os.Args[0], GuardianArg, strconv.Itoa(theirs), name}, os.Environ())
	}
	unix.Close(theirs)
	if err != nil {
		unix.Close(ours)
		return nil, nil, err
	}
	go g.watch()
	return g, os.NewFile(uintptr(ours), "guardian"), nil
}

// socketpair makes one that no program inherits, ready for Go's poller.
func socketpair() (a, b int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, 0, err
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		_ = unix.SetNonblock(fd, true)
	}
	return fds[0], fds[1], nil
}

// Become makes this process the guardian: fd is the socket that it was started
// with, and ready for what the caller makes of it.
func Become(fd string) (*os.File, error) {
	n, err := strconv.Atoi(fd)
	if err == nil {
		_, err = unix.GetsockoptInt(n, unix.SOL_SOCKET, unix.SO_TYPE)
	}
	if err != nil || n < 3 {
		return nil, errors.New("this is started by holdfast run, and by nobody else")
	}
	unix.CloseOnExec(n)
	if err := unix.SetNonblock(n, true); err != nil {
		return nil, err
	}
	adoptOrphans()
	IgnoreOutputStops()
	setName("holdfast")
	return os.NewFile(uintptr(n), "front"), nil
}

// Detach gives up the first n of the standard streams, so that no reader waits for this
// process.
func Detach(n int) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for fd := range n {
		_ = unix.Dup2(null, fd)
	}
	unix.Close(null)
}

// Ended is closed when the guardian has ended.
func (g *Guardian) Ended() <-chan struct{} { return g.ended }

// Status is how it ended.
func (g *Guardian) Status() Status { return g.status }

// Signal sends the guardian a signal.
func (g *Guardian) Signal(s syscall.Signal) {
	select {
	case <-g.ended:
	default:
		// Its number is its own until the end is known: see watch.
		_ = syscall.Kill(g.PID, s)
	}
}

// watch reaps any child until the guardian has ended: those of others as well.
func (g *Guardian) watch() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // not reached: it is a child
			g.status = Status{Signal: syscall.SIGKILL}
			close(g.ended)
			return
		case pid == g.PID:
			g.status = statusOf(ws)
			close(g.ended)
			return
		}
	}
}

// KillTree kills everything that the guardian has started, and leaves the
// guardian. Group is the command's.
func (g *Guardian) KillTree(group int) (denied []Process) { return killTree(g.PID, group) }

// KillOrphans is called after the guardian's end, kills what it has left behind
// and waits for it; group is the command's, 0 if it is not known. It answers how
// many there were, and whom this process had no right to kill: those may run on.
func (g *Guardian) KillOrphans(group int) (killed int, denied []Process) {
	return killOrphans(g.foreign, group)
}

// Boottime is the time since the boot by a clock that runs through a suspended
// machine and that all processes share, in nanoseconds.
func Boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clockBoottime, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// ProcessGroup is this process's.
func ProcessGroup() int { return syscall.Getpgrp() }
