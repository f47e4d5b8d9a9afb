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
// session. A signal to this process's group, or a key of the terminal, does not reach the guardian.
type Guardian struct {
	PID     int
	foreign map[int]bool
	ended   chan struct{}
	status  Status // set before ended is closed
}

// StartGuardian starts the guardian for the lock name, with one end of a socket pair. It returns
// the other end. A read from it returns the end of file when the guardian has ended. This process
// gets the guardian's orphans, and reaps all its own children.
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
	// The guardian inherits this descriptor. It has a number that was free, so it replaces no
	// descriptor that the command inherits.
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

// socketpair makes a socket pair for Go's poller. No child process inherits it.
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

// Become makes this process the guardian. It returns the file of the socket fd, which the front
// has passed to this process.
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

// CloseInherited marks the descriptors of this process as close-on-exec, except the standard streams. So the guardian
// does not inherit them.
func CloseInherited() {
	for _, fd := range others() {
		unix.CloseOnExec(fd)
	}
}

// others returns the open descriptors of this process, except the standard streams.
func others() (fds []int) {
	files, _ := os.ReadDir(descriptors)
	for _, f := range files {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			fds = append(fds, fd)
		}
	}
	return fds
}

// Detach replaces the first n standard streams by the null device, so that no reader of them waits
// for this process. If that is all of them, it also closes the other descriptors that this process inherited: its own
// are close-on-exec.
func Detach(n int) {
	if n == 3 {
		for _, fd := range others() {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				unix.Close(fd)
			}
		}
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for fd := range n {
		_ = unix.Dup2(null, fd)
	}
	unix.Close(null)
}

// Ended returns a channel that is closed when the guardian has ended.
func (g *Guardian) Ended() <-chan struct{} { return g.ended }

// Status returns how the guardian ended. It is valid after Ended is closed.
func (g *Guardian) Status() Status { return g.status }

// Signal sends the guardian a signal.
func (g *Guardian) Signal(s syscall.Signal) {
	select {
	case <-g.ended:
	default:
		// The process ID belongs to the guardian until watch has reaped it.
		_ = syscall.Kill(g.PID, s)
	}
}

// watch reaps every child of this process until the guardian has ended, also the children that
// other code has started.
func (g *Guardian) watch() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // not reached: the guardian is a child that is not yet reaped
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

// KillTree kills every process that the guardian has started, and not the guardian itself. group
// is the command's process group.
func (g *Guardian) KillTree(group int) (denied []Process) { return killTree(g.PID, group) }

// KillOrphans kills the processes that an ended guardian has left behind, and waits for their end.
// The group is the command's process group, or 0 if it is unknown. KillOrphans returns the number of
// killed processes. It also returns the processes that this one has no right to kill; they may
// continue.
func (g *Guardian) KillOrphans(group int) (killed int, denied []Process) {
	return killOrphans(g.foreign, group)
}

// Boottime returns the time since the boot in nanoseconds. All processes read the same clock. It
// continues while the machine is suspended.
func Boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clockBoottime, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// ProcessGroup returns the number of this process's group.
func ProcessGroup() int { return syscall.Getpgrp() }
