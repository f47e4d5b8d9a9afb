//go:build linux || darwin

package proc

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Guardian is a second process of this program, in a process group of its own and the same
// session. A signal to this process, or a key pressed at the terminal, does not reach it.
type Guardian struct {
	PID     int
	foreign map[int]bool
	ended   chan struct{}
	status  Status // set before ended is closed
}

// StartGuardian starts the guardian for the lock name, with one end of a socket pair. It
// returns the other end, which reads as ended when the guardian ends. This process gets the
// guardian's orphans, and reaps all its children.
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
	// Above the descriptors of the command: it was the lowest free one.
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

// socketpair makes a socket pair that no program inherits, ready for Go's poller.
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

// Become makes this process the guardian: fd is the socket that it was started with, which
// Become makes ready for use.
func Become(fd string) (*os.File, error) {
	n, err := strconv.Atoi(fd)
	if err == nil {
		_, err = unix.GetsockoptInt(n, unix.SOL_SOCKET, unix.SO_TYPE)
	}
	if err != nil || n < 3 {
		return nil, errors.New("only holdfast run starts this")
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

// Detach closes the first n standard streams, so that no reader waits for this process.
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

// Status returns how the guardian ended.
func (g *Guardian) Status() Status { return g.status }

// Signal sends the guardian a signal.
func (g *Guardian) Signal(s syscall.Signal) {
	select {
	case <-g.ended:
	default:
		// The process ID belongs to the guardian until watch has seen its end.
		_ = syscall.Kill(g.PID, s)
	}
}

// watch reaps any child until the guardian has ended, including the children of other code.
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

// KillTree kills everything that the guardian has started, and not the guardian. group is
// the command's process group.
func (g *Guardian) KillTree(group int) (denied []Process) { return killTree(g.PID, group) }

// KillOrphans kills what an ended guardian has left behind, and waits for it. group is the
// command's, 0 if unknown. It returns the number of killed processes, and the processes that
// this one has no right to kill: they may continue.
func (g *Guardian) KillOrphans(group int) (killed int, denied []Process) {
	return killOrphans(g.foreign, group)
}

// Boottime returns the time since the boot in nanoseconds, by a clock that all processes
// share. It continues while the machine is suspended.
func Boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clockBoottime, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// ProcessGroup returns the number of this process's group.
func ProcessGroup() int { return syscall.Getpgrp() }
