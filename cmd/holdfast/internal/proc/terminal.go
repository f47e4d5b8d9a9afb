//go:build linux || darwin

package proc

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is the controlling terminal. A command in a process group of its own stops at its first
// read unless its group is the terminal's foreground group. So the owner makes it the foreground
// group while the command runs. A nil *Terminal means that there is no terminal.
type Terminal struct {
	fd     int
	owner  int  // the group that lends the foreground to the command
	stdin  bool // the terminal is the standard input
	lentTo int  // the command's group while it has the foreground, otherwise 0
	modes  *unix.Termios
}

// OpenTerminal opens the controlling terminal. It returns nil if there is none. owner is the
// process group that lends the foreground and gets it back.
func OpenTerminal(owner int) *Terminal {
	t := &Terminal{fd: 0, owner: owner, stdin: true}
	if _, err := foregroundGroup(t.fd); err == nil {
		return t
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	t.fd, t.stdin = fd, false
	return t
}

// atStart reports whether a command starts in the foreground.
func (t *Terminal) atStart() bool { return t != nil && t.stdin && t.isWith(t.owner) }

func (t *Terminal) isWith(group int) bool {
	pgrp, err := foregroundGroup(t.fd)
	return err == nil && pgrp == group
}

// Wanted handles a command that was stopped because it used the terminal. It lends the
// foreground if the owner has it, and reports whether the command can continue.
func (t *Terminal) Wanted(group int) bool {
	if t == nil {
		return false
	}
	t.stdin = true // from now on the command gets the foreground whenever the owner gets it
	return t.isWith(group) || t.Lend(group)
}

// Lend gives the foreground to the command if the owner has it, and reports whether it did.
func (t *Terminal) Lend(group int) bool {
	if t == nil || !t.stdin || !t.isWith(t.owner) {
		return false
	}
	t.SaveModes()
	if setForegroundGroup(t.fd, group) != nil {
		return false
	}
	t.lentTo = group
	return true
}

// TakeBack gives the foreground back to the owner if the command has it, and reports whether
// it had.
func (t *Terminal) TakeBack() bool {
	if t == nil || t.lentTo == 0 {
		return false
	}
	lent := t.lentTo
	t.lentTo = 0
	if !t.isWith(lent) {
		return false // a shell has taken it, for itself or for another job
	}
	_ = setForegroundGroup(t.fd, t.owner)
	return true
}

// Reclaim gives the foreground of a killed command back to the owner, and restores the terminal's
// first modes. It is for the case that the command and every other process that could do this
// were killed.
func (t *Terminal) Reclaim() {
	if t == nil || t.modes == nil {
		return // the owner did not have the foreground when it called SaveModes
	}
	pgrp, err := foregroundGroup(t.fd)
	if err != nil || pgrp == t.owner || syscall.Kill(-pgrp, 0) == nil {
		return
	}
	IgnoreOutputStops()
	_ = setForegroundGroup(t.fd, t.owner)
	t.RestoreModes()
}

// RestoreModes restores the terminal's modes after a command that was killed before it could
// restore them.
func (t *Terminal) RestoreModes() {
	if t.modes != nil {
		_ = unix.IoctlSetTermios(t.fd, setTermios, t.modes)
	}
}

// SaveModes saves the modes before the first command gets the terminal, if the owner has it.
func (t *Terminal) SaveModes() {
	if t == nil || t.modes != nil || !t.isWith(t.owner) {
		return
	}
	if modes, err := unix.IoctlGetTermios(t.fd, getTermios); err == nil {
		t.modes = modes
	}
}

var outputStops struct {
	sync.Mutex
	ignored bool // this process ignores SIGTTOU since IgnoreOutputStops, and has not inherited that
}

// IgnoreOutputStops makes this process ignore SIGTTOU. So it can write to the terminal and set the
// foreground group from the background, and the terminal does not stop it. Its children do not
// inherit that.
func IgnoreOutputStops() {
	outputStops.Lock()
	defer outputStops.Unlock()
	if !signal.Ignored(syscall.SIGTTOU) {
		signal.Ignore(syscall.SIGTTOU)
		outputStops.ignored = true
	}
}

// heedOutputStops undoes IgnoreOutputStops for the processes that the caller starts before it calls
// again. Until then, a write of this process to the terminal may have to wait.
func heedOutputStops() (again func()) {
	outputStops.Lock()
	if outputStops.ignored {
		// signal.Reset would leave it ignored; a handler does not outlive exec.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTTOU)
	}
	return func() {
		if outputStops.ignored {
			signal.Ignore(syscall.SIGTTOU)
		}
		outputStops.Unlock()
	}
}

func setForegroundGroup(fd, pgrp int) error {
	return unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, pgrp)
}

// Suspend stops this process's whole group, as the terminal would do if the command had no group of
// its own. It returns true if another process can continue the group with SIGCONT. Otherwise it
// does nothing and returns false.
//
// The caller receives SIGTSTP and SIGTTIN by signal.Notify, and calls Notify again after Suspend.
// Go's handler for them stays installed forever, so these signals do not stop this process, as they
// stop the others of its group. It sends itself SIGSTOP instead. In an orphaned group the system
// ignores the terminal's stop signals, but not SIGSTOP. So Suspend checks for that case first.
func Suspend(sig syscall.Signal) bool {
	if orphaned() {
		return false
	}
	// This process must not receive the signal, also not later from a handler that was running
	// when the process stopped.
	signal.Ignore(sig)
	_ = syscall.Kill(0, sig)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	return true
}

// orphaned reports whether no parent could continue this process's group: the first ancestor
// outside the group belongs to another session.
func orphaned() bool {
	group := syscall.Getpgrp()
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	for pid := syscall.Getppid(); pid > 0; pid = parentOf(pid) {
		g, err := syscall.Getpgid(pid)
		if err != nil {
			return true
		}
		if g != group {
			s, err := unix.Getsid(pid)
			return err != nil || s != session
		}
	}
	return true
}
