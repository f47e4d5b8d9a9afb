//go:build linux || darwin

package proc

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is the controlling terminal. A command in a process group of its own
// stops at its first read unless its group is the terminal's foreground group, so
// it is lent the foreground while it runs. A nil *Terminal stands for none.
type Terminal struct {
	fd     int
	owner  int  // the group whose it is to lend
	stdin  bool // it is the standard input
	lentTo int  // the command's group, while it has the foreground, else 0
	modes  *unix.Termios
}

// OpenTerminal finds the controlling terminal: nil if there is none. Owner is the
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

// atStart tells whether a command is to begin in the foreground.
func (t *Terminal) atStart() bool { return t != nil && t.stdin && t.isWith(t.owner) }

func (t *Terminal) isWith(group int) bool {
	pgrp, err := foregroundGroup(t.fd)
	return err == nil && pgrp == group
}

// Wanted tells what to do about a command that was stopped because it reached
// for the terminal. It lends the foreground if that is the owner's to lend, and
// answers whether the command can go on.
func (t *Terminal) Wanted(group int) bool {
	if t == nil {
		return false
	}
	t.stdin = true // from now on it gets the terminal whenever the owner does
	return t.isWith(group) || t.Lend(group)
}

// Lend gives the foreground to the command if the owner has it, and answers
// whether it did.
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

// TakeBack gives the foreground back to the owner if the command has it, and
// answers whether it had.
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

// Reclaim gives the owner the foreground that a command had which has been
// killed, with everyone who could have given it back, and the modes of the
// beginning.
func (t *Terminal) Reclaim() {
	if t == nil || t.modes == nil {
		return // it was not the owner's when SaveModes was called
	}
	pgrp, err := foregroundGroup(t.fd)
	if err != nil || pgrp == t.owner || syscall.Kill(-pgrp, 0) == nil {
		return
	}
	IgnoreOutputStops()
	_ = setForegroundGroup(t.fd, t.owner)
	t.RestoreModes()
}

// RestoreModes puts the terminal's modes back that a command which was killed
// had no chance to.
func (t *Terminal) RestoreModes() {
	if t.modes != nil {
		_ = unix.IoctlSetTermios(t.fd, setTermios, t.modes)
	}
}

// SaveModes keeps the modes as they are before the first command has had the
// terminal, if the owner has it.
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
	ignored bool // by this process, and not from before
}

// IgnoreOutputStops keeps this process from being stopped when it writes to the
// terminal, or sets its foreground group, from the background. What it starts
// does not inherit that.
func IgnoreOutputStops() {
	outputStops.Lock()
	defer outputStops.Unlock()
	if !signal.Ignored(syscall.SIGTTOU) {
		signal.Ignore(syscall.SIGTTOU)
		outputStops.ignored = true
	}
}

// heedOutputStops undoes IgnoreOutputStops for what is started until the function
// that it answers is called. A write to the terminal may have to wait so long.
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
