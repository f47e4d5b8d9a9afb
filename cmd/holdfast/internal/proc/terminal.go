//go:build linux || darwin

package proc

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is the controlling terminal of this process. A command in a process
// group of its own stops at its first read unless its group is the terminal's
// foreground group, so it is lent the foreground while it runs. A nil *Terminal
// stands for none.
type Terminal struct {
	fd    int
	own   int  // this process's group
	stdin bool // it is the standard input
	given bool // the command has the foreground
	modes *unix.Termios
}

// OpenTerminal finds the controlling terminal: nil if there is none.
func OpenTerminal() *Terminal {
	t := &Terminal{fd: 0, own: syscall.Getpgrp(), stdin: true}
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

// atStart tells whether a command is to begin in the foreground.
func (t *Terminal) atStart() bool { return t != nil && t.stdin && t.isOurs() }

func (t *Terminal) isOurs() bool {
	pgrp, err := foregroundGroup(t.fd)
	return err == nil && pgrp == t.own
}

// Wanted tells what to do about a command that was stopped because it reached
// for the terminal. It lends the foreground if that is this process's to lend,
// and answers whether the command can go on.
func (t *Terminal) Wanted(g *Group) bool {
	if t == nil {
		return false
	}
	t.stdin = true // from now on it gets the terminal whenever this process does
	pgrp, err := foregroundGroup(t.fd)
	return err == nil && pgrp == g.pid || t.Lend(g)
}

// Lend gives the foreground to the command if this process has it, and answers
// whether it did.
func (t *Terminal) Lend(g *Group) bool {
	if t == nil || !t.stdin || !t.isOurs() {
		if t != nil && t.given {
			pgrp, err := foregroundGroup(t.fd)
			t.given = err == nil && pgrp == g.pid
		}
		return false
	}
	t.saveModes()
	t.given = setForegroundGroup(t.fd, g.pid) == nil
	return t.given
}

// TakeBack gives the foreground back to this process's group if the command has
// it, and answers whether it had.
func (t *Terminal) TakeBack() bool {
	if t == nil || !t.given {
		return false
	}
	t.given = false
	_ = setForegroundGroup(t.fd, t.own)
	return true
}

// RestoreModes puts the terminal's modes back that a command which was killed
// had no chance to.
func (t *Terminal) RestoreModes() {
	if t.modes != nil {
		_ = unix.IoctlSetTermios(t.fd, setTermios, t.modes)
	}
}

func (t *Terminal) saveModes() {
	if t.modes != nil {
		return // those of the beginning
	}
	if modes, err := unix.IoctlGetTermios(t.fd, getTermios); err == nil {
		t.modes = modes
	}
}

// IgnoreOutputStops keeps a background process that sets the terminal's
// foreground group, or writes to it, from being stopped. It must not be in force
// while a command is started: it would be inherited.
func IgnoreOutputStops() { signal.Ignore(syscall.SIGTTOU) }

// ForegroundArg, as the first argument, makes this program a step between fork
// and exec: see Foreground.
const ForegroundArg = "exec-in-foreground"

// Foreground makes this process's group, of which it is the leader, the
// terminal's foreground group and becomes the command. Between fork and exec Go
// has no place for that: a parent that does it after the start races with the
// command's first look at the terminal, and SysProcAttr.Foreground needs SIGTTOU
// ignored, which the command would inherit.
func Foreground(args []string) int {
	if len(args) < 2 {
		return 1
	}
	ignored := signal.Ignored(syscall.SIGTTOU)
	signal.Ignore(syscall.SIGTTOU)
	_ = setForegroundGroup(0, syscall.Getpid())
	if !ignored {
		// signal.Reset would leave it ignored; a handler does not outlive exec.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTTOU)
	}
	e := notRunnable(args[1], syscall.Exec(args[0], args[1:], os.Environ()))
	fmt.Fprintf(os.Stderr, "holdfast: %v\n", e)
	return e.Status
}

func setForegroundGroup(fd, pgrp int) error {
	return unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, pgrp)
}

// Suspend stops this process's whole group, as the terminal would have done if
// the command had not a group of its own, and answers true: a SIGCONT will come.
// It answers false, and does nothing, where nobody could continue the group.
//
// The caller receives SIGTSTP and SIGTTIN by signal.Notify, and does so again
// when it goes on. Go's handler stays for good then, so this process cannot stop
// by the signal itself as the others of its group do; SIGSTOP in its place would
// stop an orphaned group for ever, which the system prevents for the others.
func Suspend(sig syscall.Signal) bool {
	if orphaned() {
		return false
	}
	// Not to hear of it here: nor later, from a handler that had begun when the
	// stop came.
	signal.Ignore(sig)
	_ = syscall.Kill(0, sig)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	return true
}

// orphaned tells whether this process's group has no parent that could continue
// it: the first ancestor outside of the group belongs to another session.
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
