//go:build linux || darwin

package check

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// registers are the data that workers change inside their locks. Each has a number, and the largest
// token that has read or written it. The function calls f with both and stores the results of f,
// in one step that does not depend on the locks that the check tests.
type registers func(res string, f func(token uint64, value int64) (uint64, int64)) error

// inFiles returns registers that are files in a directory. Each access is one step under flock.
func inFiles(dir string) registers {
	return func(res string, f func(token uint64, value int64) (uint64, int64)) error {
		return inFile(filepath.Join(dir, fmt.Sprintf("%x", res)), f)
	}
}

func inFile(path string, f func(token uint64, value int64) (uint64, int64)) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", path, err)
	}
	var b [16]byte
	if _, err := file.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	token, value := f(binary.LittleEndian.Uint64(b[:8]), int64(binary.LittleEndian.Uint64(b[8:])))
	binary.LittleEndian.PutUint64(b[:8], token)
	binary.LittleEndian.PutUint64(b[8:], uint64(value))
	_, err = file.WriteAt(b[:], 0)
	return err
}

// raise presents a token to a guarded register and reads the value. After that the register
// refuses smaller tokens. If the register has already seen a larger token, raise returns
// false.
func (r registers) raise(res string, token uint64) (value int64, ok bool, err error) {
	err = r(res, func(newest uint64, v int64) (uint64, int64) {
		ok, value = token >= newest, v
		return max(token, newest), v
	})
	return value, ok, err
}

// write stores a value unless the register has seen a larger token.
func (r registers) write(res string, token uint64, value int64) (ok bool, err error) {
	err = r(res, func(newest uint64, v int64) (uint64, int64) {
		if ok = token >= newest; !ok {
			return newest, v
		}
		return token, value
	})
	return ok, err
}

// read and put use no tokens.
func (r registers) read(res string) (value int64, err error) {
	err = r(res, func(t uint64, v int64) (uint64, int64) { value = v; return t, v })
	return value, err
}

func (r registers) put(res string, value int64) error {
	return r(res, func(t uint64, _ int64) (uint64, int64) { return t, value })
}
