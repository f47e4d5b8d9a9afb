package filestore

import (
	"os"

	"golang.org/x/sys/unix"
)

func bootNow() (id bootID, err error) {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return id, err
	}
	return parseBoot([]byte(s))
}

// datasync writes a file to the disk. It uses F_FULLFSYNC, because on this system fsync may leave the
// data in the cache of the drive.
func datasync(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	if err == unix.ENOTSUP || err == unix.EINVAL {
		err = unix.Fsync(fd)
	}
	return err
}

// pidNamespace returns a constant, because this system has only one.
func pidNamespace() string { return "host" }

// stopped reports whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	const sstop = 4 // SSTOP of sys/proc.h
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	return err == nil && k.Proc.P_stat == sstop
}

func canShorten() bool { return false }

func shortName(dir *os.File) string { return dir.Name() }

func openSocket(dir *os.File, name string) (path string, done func(), err error) {
	return checkedSocket(dir, name)
}
