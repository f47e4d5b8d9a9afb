//go:build amd64 || arm64

package filestore_test

import (
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func init() { fork = forkSleeper }

// sleeperTime limits how long the forked child runs if a failed test does not end it.
var sleeperTime = syscall.Timespec{Sec: 600}

// forkSleeper forks this process without exec. The child sleeps. It has one thread and no Go scheduler,
// so it makes system calls only.
func forkSleeper() (pid int, err error) {
	child, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if child != 0 {
		return int(child), nil
	}
	syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, uintptr(unsafe.Pointer(&sleeperTime)), 0, 0, 0)
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// TestForkedChildKeepsTheLock: the holder is killed. A child that it forked without exec still runs.
// The lock stays held until the child ends.
func TestForkedChildKeepsTheLock(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	c := start(t, "fork", dir, "a")
	pid, err := strconv.Atoi(c.says("child"))
	must.Succeed(t, err)
	defer syscall.Kill(pid, syscall.SIGKILL)
	c.says("granted")
	p := queue(t, s, "a", driver.Exclusive)
	c.signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
	_, err = s.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, s, err, driver.CodeBusy)
	select {
	case <-p.done:
		t.Fatalf("granted beside the child: %+v, %v", p.g, p.err)
	default:
	}
	must.Succeed(t, syscall.Kill(pid, syscall.SIGKILL))
	release(t, s, p.granted(t))
}
