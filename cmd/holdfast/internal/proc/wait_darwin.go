package proc

import (
	"syscall"
	"unsafe"
)

// child describes a change of a child's state: it has stopped, or has ended.
type child struct {
	pid  int
	stop bool
}

// childInfo is siginfo_t, with room for all fields that the system writes.
type childInfo struct {
	signo, errno, code, pid int32
	uid                     uint32
	status                  int32
	_                       [128]byte
}

const (
	pPID       = 1 // P_PID
	wEXITED    = 0x4
	wSTOPPED   = 0x8
	wNOWAIT    = 0x20
	wNOHANG    = 0x1
	cldStopped = 5 // CLD_STOPPED
)

func waitid(pid, options int) (info childInfo, err error) {
	_, _, e := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(pid), uintptr(unsafe.Pointer(&info)), uintptr(options), 0, 0)
	if e != 0 {
		err = e
	}
	return info, err
}

// peek waits for the next change of the leader, whose number is pid, and does not consume it. The
// leader is the only child to wait for, because this system hands no orphans to this process.
func peek(pid int) (child, error) {
	info, err := waitid(pid, wEXITED|wSTOPPED|wNOWAIT)
	return child{pid: pid, stop: info.code == cldStopped}, err
}

// takeStop consumes the event that a child has stopped, and no other event. It returns the signal
// that stopped the child.
func takeStop(pid int) (syscall.Signal, bool) {
	info, err := waitid(pid, wSTOPPED|wNOHANG)
	return syscall.Signal(info.status), err == nil && info.code == cldStopped
}

// adoptOrphans does nothing: this system has no subreapers.
func adoptOrphans() {}
