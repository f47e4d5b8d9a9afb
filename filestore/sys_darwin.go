package filestore

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// localFileSystems contains the file systems whose files and flocks belong to one machine.
var localFileSystems = []string{"apfs", "hfs", "tmpfs"}

// fileSystemOf returns the file system of a directory, and whether it is known to be local to this
// machine.
func fileSystemOf(dir string) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false, err
	}
	name = unix.ByteSliceToString(st.Fstypename[:])
	return name, st.Flags&unix.MNT_LOCAL != 0 && slices.Contains(localFileSystems, name), nil
}

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

// stopped reports whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	const sstop = 4 // SSTOP of sys/proc.h
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	return err == nil && k.Proc.P_stat == sstop
}

func canShorten() bool { return false }

func shortName(dir *os.File) string { return dir.Name() }
