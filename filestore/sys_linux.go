package filestore

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// networkFS names the file system if a lock on it may be local to one host.
func networkFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC:
		return "NFS", nil
	case unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return "SMB", nil
	case unix.V9FS_MAGIC:
		return "9P", nil
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return "AFS", nil
	case unix.CODA_SUPER_MAGIC:
		return "Coda", nil
	case unix.CEPH_SUPER_MAGIC:
		return "Ceph", nil
	case 0x0BD00BD0:
		return "Lustre", nil
	case unix.OCFS2_SUPER_MAGIC:
		return "OCFS2", nil
	case 0x01161970:
		return "GFS2", nil
	case unix.FUSE_SUPER_MAGIC:
		return "a FUSE file system", nil
	}
	return "", nil
}

func bootNow() (id bootID, err error) {
	const path = "/proc/sys/kernel/random/boot_id"
	b, err := os.ReadFile(path)
	if err != nil {
		return id, err
	}
	return parseBoot(b)
}

func datasync(fd int) error {
	for {
		if err := unix.Fdatasync(fd); err != unix.EINTR {
			return err
		}
	}
}

// stopped tells whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The command's name stands in parentheses and may contain any byte.
	i := bytes.LastIndexByte(b, ')')
	return i >= 0 && i+2 < len(b) && (b[i+2] == 'T' || b[i+2] == 't')
}

// canShorten: a directory's descriptor gives a socket in it a short name.
func canShorten() bool {
	_, err := os.Stat("/proc/self/fd")
	return err == nil
}

func shortName(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) }
