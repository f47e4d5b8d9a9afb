//go:build linux || darwin

package filestore

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// The system calls below continue after a signal, as in package os.

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

func open(path string, flags int, mode uint32) (int, error) {
	for {
		if fd, err := unix.Open(path, flags, mode); err != unix.EINTR {
			return fd, err
		}
	}
}

func stat(path string, st *unix.Stat_t) error {
	for {
		if err := unix.Stat(path, st); err != unix.EINTR {
			return err
		}
	}
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

// coded adds a code and the path to the error of a step that has changed nothing.
func coded(doing, path string, err error) error {
	code := driver.CodeUnavailable
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ELOOP) {
		code = driver.CodeRefused
	}
	return driver.Errorf(code, "%s %s: %w", doing, path, err)
}
