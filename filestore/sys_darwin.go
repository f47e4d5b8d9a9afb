package filestore

import (
	"os"

	"golang.org/x/sys/unix"
)

// networkFS names the file system if a lock on it may be local to one host.
func networkFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	if uint32(st.Flags)&unix.MNT_LOCAL == 0 {
		return "a network file system (" + unix.ByteSliceToString(st.Fstypename[:]) + ")", nil
	}
	return "", nil
}

func bootNow() (id bootID, err error) {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return id, err
	}
	return parseBoot([]byte(s))
}

// datasync asks the drive itself: fsync here does not.
func datasync(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	if err == unix.ENOTSUP || err == unix.EINVAL {
		err = unix.Fsync(fd)
	}
	return err
}

// stopped tells whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	const sstop = 4 // SSTOP of sys/proc.h
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	return err == nil && k.Proc.P_stat == sstop
}

func canShorten() bool { return false }

func shortName(dir *os.File) string { return dir.Name() }
