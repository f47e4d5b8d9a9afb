package filestore

import (
	"io/fs"
	"os"
	"path/filepath"

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

const shortSockets = false

func newSocket(dir *os.File, name string) string { return filepath.Join(dir.Name(), name) }

// openSocket returns the path of a socket of a directory. Unlike that of Linux it does not keep the socket open, so the
// path may lead to another file when it is dialled. No lock depends on that: a message only wakes a waiter.
func openSocket(dir *os.File, name string) (path string, done func(), err error) {
	var st unix.Stat_t
	if err := fstatat(dir, name, &st); err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir.Name(), name)
	return path, func() {}, checkSocket(&st, path)
}

func chmodSocket(dir *os.File, name string, mode fs.FileMode) {
	in(dir, func(fd int) error { return unix.Fchmodat(fd, name, uint32(mode), unix.AT_SYMLINK_NOFOLLOW) })
}
