package proc

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This system hands no orphans to this process. So this process does not see the descendants that
// have left the command's group.

func seesTree() bool { return false }

// Blind reports whether this process sees the end of descendants outside the command's group, but
// cannot list them. On this system it does not see their end, so Blind returns false.
func Blind() bool { return false }

func signalDescendants(int, syscall.Signal, int, bool) []Process { return nil }

func signalLeftInGroup(group int, s syscall.Signal) error { return signalGroup(group, s) }

// parentOf returns the parent of a process, or 0 if it is unknown.
func parentOf(pid int) int {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0
	}
	return int(k.Eproc.Ppid)
}

// awaitOthers waits until no process of the group is left. It calls left if it has to wait. No
// event reports the end of a group, so it polls. It does so only if the command has left processes
// behind.
func awaitOthers(group int, left func()) {
	for pause := time.Millisecond; syscall.Kill(-group, 0) != syscall.ESRCH; pause = min(2*pause, 20*time.Millisecond) {
		if left != nil {
			left()
			left = nil
		}
		time.Sleep(pause)
	}
}

func killTree(_, group int) []Process {
	if group > 0 {
		_ = signalGroup(group, syscall.SIGKILL)
	}
	return nil
}

// killOrphans kills the group, which no longer has a parent.
func killOrphans(_ map[int]bool, group int) (killed int, denied []Process) {
	if group == 0 || syscall.Kill(-group, syscall.SIGKILL) != nil {
		return 0, nil
	}
	awaitOthers(group, nil)
	return 1, nil
}

func foreign() map[int]bool { return nil }

func setName(string) {}

const clockBoottime = unix.CLOCK_MONOTONIC // this clock continues while the machine is suspended

const descriptors = "/dev/fd"

// watchEnd returns a function that waits for the end of a process.
func watchEnd(pid int) (await func(), err error) {
	kq, err := unix.Kqueue()
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(kq)
	events := make([]unix.Kevent_t, 1)
	unix.SetKevent(&events[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	events[0].Fflags = unix.NOTE_EXIT
	if _, err := unix.Kevent(kq, events, nil, nil); err != nil {
		unix.Close(kq)
		return nil, err
	}
	return func() {
		defer unix.Close(kq)
		for {
			if n, err := unix.Kevent(kq, nil, events, nil); n > 0 || err != unix.EINTR {
				return
			}
		}
	}, nil
}

// signalSection sends a signal to the process alone: its descendants are not visible.
func signalSection(pid int, s syscall.Signal) ([]Process, error) { return nil, signalPID(pid, s) }
