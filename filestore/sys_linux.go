package filestore

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

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

// stopped reports whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The command's name is in parentheses and may contain any byte.
	i := bytes.LastIndexByte(b, ')')
	return i >= 0 && i+2 < len(b) && (b[i+2] == 'T' || b[i+2] == 't')
}

// canShorten reports whether the system has /proc/self/fd: through it shortName gives a socket a path
// that is short enough for connect.
func canShorten() bool {
	_, err := os.Stat("/proc/self/fd")
	return err == nil
}

// shortName returns a short path of an open directory.
func shortName(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) }
