//go:build linux || darwin

package filestore

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// again repeats a system call that a signal has interrupted, as package os does.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func flock(fd, how int) error {
	return again(func() error { return unix.Flock(fd, how) })
}

func stat(path string, st *unix.Stat_t) error {
	return again(func() error { return unix.Stat(path, st) })
}

func lstat(path string, st *unix.Stat_t) error {
	return again(func() error { return unix.Lstat(path, st) })
}

// in calls f with the descriptor of a file, which stays open meanwhile. It repeats f after a signal.
func in(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	err = raw.Control(func(fd uintptr) { ferr = again(func() error { return f(int(fd)) }) })
	return cmp.Or(err, ferr)
}

func fstat(file *os.File, st *unix.Stat_t) error {
	return in(file, func(fd int) error { return unix.Fstat(fd, st) })
}

// fstatat describes a file of a directory, or a link itself.
func fstatat(dir *os.File, name string, st *unix.Stat_t) error {
	return in(dir, func(fd int) error { return unix.Fstatat(fd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// openat opens a file of a directory. It follows no link, and does not wait for the writer of a FIFO.
func openat(dir *os.File, name string, flags int, mode uint32) (opened int, err error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	err = in(dir, func(fd int) (err error) {
		opened, err = unix.Openat(fd, name, flags, mode)
		return err
	})
	return opened, err
}

// openDir opens a directory. The last part of the path is not a link.
func openDir(path string) (*os.File, error) {
	var fd int
	err := again(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// unlink removes a file of a directory.
func unlink(dir *os.File, name string) error {
	return in(dir, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
}

func pread(fd int, p []byte, off int64) (int, error) {
	for {
		if n, err := unix.Pread(fd, p, off); err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

func pwrite(fd int, p []byte, off int64) (int, error) {
	for {
		if n, err := unix.Pwrite(fd, p, off); err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

func parseBoot(b []byte) (id bootID, err error) {
	digits := bytes.ReplaceAll(bytes.TrimSpace(b), []byte("-"), nil)
	if n, err := hex.Decode(id[:], digits[:min(len(digits), 2*len(id))]); err != nil || n != len(id) {
		return id, fmt.Errorf("the boot's id %q is no UUID", b)
	}
	return id, nil
}

func hasCode(err error) bool {
	_, ok := errors.AsType[*driver.Error](err)
	return ok
}

// coded adds a code and the path to the error of a step that has changed nothing. It does not change an error
// that has a code.
func coded(doing, path string, err error) error {
	if hasCode(err) {
		return err
	}
	code := driver.CodeUnavailable
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ELOOP) {
		code = driver.CodeRefused
	}
	return driver.Errorf(code, "%s %s: %w", doing, path, err)
}

// checkSocket refuses a file that is not a socket of this store.
func checkSocket(st *unix.Stat_t, path string) error {
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Nlink > 1 {
		return driver.Broken(path, "it is not a socket, or has a second name")
	}
	return nil
}
