package proc

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// child describes a change of a child's state: it has stopped, or has ended.
type child struct {
	pid  int
	stop bool
}

// childInfo is the part of siginfo_t that waitid fills in. The empty array aligns the next
// field like the kernel's union.
type childInfo struct {
	signo, errno, code int32
	_                  [0]uintptr
	pid                int32
	uid                uint32
	status             int32
}

func waitid(kind, id, options int) (si unix.Siginfo, info childInfo, err error) {
	err = unix.Waitid(kind, id, &si, options, nil)
	return si, *(*childInfo)(unsafe.Pointer(&si)), err
}

const (
	cldStopped = 5 // CLD_STOPPED
)

// peek waits for the next change of any child and does not consume it.
func peek(int) (child, error) {
	si, info, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT)
	return child{pid: int(info.pid), stop: si.Code == cldStopped}, err
}

// takeStop consumes the event that a child has stopped, and no other event. It returns the signal
// that stopped the child.
func takeStop(pid int) (syscall.Signal, bool) {
	si, info, err := waitid(unix.P_PID, pid, unix.WSTOPPED|unix.WNOHANG)
	return syscall.Signal(info.status), err == nil && si.Code == cldStopped
}

// adoptOrphans makes this process a subreaper: its descendants become its children when their
// parents die. So this process sees their end, and the first process of the system does not get
// them.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
