package filestore

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

func datasync(fd int) error { return again(func() error { return unix.Fdatasync(fd) }) }

// pidNamespace returns the name of the PID namespace of this process, or "" without /proc.
func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// stopped reports whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	if self, _ := os.Readlink("/proc/self"); self != strconv.Itoa(os.Getpid()) {
		return false // /proc shows another PID namespace
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The command's name is in parentheses and may contain any byte.
	i := bytes.LastIndexByte(b, ')')
	return i >= 0 && i+2 < len(b) && (b[i+2] == 'T' || b[i+2] == 't')
}

// shortSockets reports that newSocket and openSocket return a path that is short, and that no other user can change.
// A process that cannot read /proc cannot open the store: see bootNow.
const shortSockets = true

// newSocket returns a path for a new socket of a directory.
func newSocket(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// openSocket returns a path of a socket of a directory, which is valid until the caller calls done.
func openSocket(dir *os.File, name string) (path string, done func(), err error) {
	fd, err := openat(dir, name, unix.O_PATH, 0)
	if err != nil {
		return "", nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = checkSocket(&st, filepath.Join(dir.Name(), name))
	}
	if err != nil {
		unix.Close(fd)
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), func() { unix.Close(fd) }, nil
}

// chmodSocket gives a socket its mode.
func chmodSocket(dir *os.File, name string, mode fs.FileMode) {
	if path, done, err := openSocket(dir, name); err == nil {
		os.Chmod(path, mode)
		done()
	}
}
