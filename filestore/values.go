//go:build linux || darwin

package filestore

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

var _ driver.Values = (*store)(nil)

// A value is a file in the directory values, named by the hash of its namespace and key. It contains a
// line with its version, a line with the quoted key, for people, and the data. Put writes a new file,
// syncs it and renames it, all under the flock of values/lock. So a reader needs no lock, and a process
// that is killed leaves the old value or the new one.

// Get implements driver.Values.
func (s *store) Get(ctx context.Context, key string) ([]byte, string, error) {
	if err := s.enterValue(ctx, key, nil); err != nil {
		return nil, "", err
	}
	defer s.calls.Leave()
	dir, err := s.openValues()
	if err == unix.ENOENT {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", coded("reading", s.path(valuesDir), err)
	}
	defer dir.Close()
	return s.readValue(dir, s.valueFile(key))
}

// Put implements driver.Values.
func (s *store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if err := s.enterValue(ctx, key, data); err != nil {
		return "", err
	}
	defer s.calls.Leave()
	dir, err := s.lockValues(ctx)
	if err != nil {
		return "", err
	}
	defer s.values.leave()
	defer dir.Close()
	file := s.valueFile(key)
	switch _, now, err := s.readValue(dir, file); {
	case err != nil:
		return "", err
	case now != version: // mutation: file-version
		return "", driver.Conflict(key)
	}
	next := rand.Text()
	content := append([]byte(next+"\n"+strings.ReplaceAll(key, "\n", " ")+"\n"), data...)
	if err := s.replaceValue(dir, file, content); err != nil {
		return "", err
	}
	return next, nil
}

func (s *store) enterValue(ctx context.Context, key string, data []byte) error {
	if err := s.calls.Ready(ctx, key, data); err != nil {
		return err
	}
	return s.calls.Enter()
}

// openValues opens the directory of the values. The error is ENOENT if there is none.
func (s *store) openValues() (*os.File, error) {
	if err := s.refresh(false); err != nil {
		return nil, err
	}
	return s.subdir(valuesDir)
}

func (s *store) valueFile(key string) string {
	sum := sha256.Sum256([]byte(s.ns + "\x00" + key))
	return hex.EncodeToString(sum[:])
}

// maxValueFile is the length of the longest file of a value: its version, its key and its data.
const maxValueFile = 128 + driver.MaxName + driver.MaxValue

func (s *store) readValue(dir *os.File, name string) (data []byte, version string, err error) {
	path := s.path(valuesDir, name)
	fd, st, err := s.openFile(dir, name, unix.O_RDONLY)
	if err == unix.ENOENT {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", coded("reading", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var content []byte
	if st.Size <= maxValueFile {
		if content, err = io.ReadAll(io.LimitReader(f, maxValueFile)); err != nil {
			return nil, "", coded("reading", path, err)
		}
	}
	data, version, ok := parseValue(content)
	if !ok {
		return nil, "", driver.Broken(path, "it is not a value of this store")
	}
	return data, version, nil
}

// parseValue decodes a value's file. It returns false for content that Put did not write.
func parseValue(content []byte) (data []byte, version string, ok bool) {
	head, rest, ok := bytes.Cut(content, []byte("\n"))
	key, data, ok2 := bytes.Cut(rest, []byte("\n"))
	ok = ok && ok2 && len(head) > 0 && len(head) <= 128 && len(key) <= driver.MaxName && len(data) <= driver.MaxValue
	return data, string(head), ok
}

// lockValues waits for the lock of the values, and opens their directory. The caller closes the directory, and leaves
// the critical section.
func (s *store) lockValues(ctx context.Context) (*os.File, error) {
	if err := s.values.enter(ctx, s.calls.Ctx.Done(), true); err != nil {
		return nil, err
	}
	dir, err := s.subdir(valuesDir)
	if err == nil {
		// If the directory was replaced meanwhile, other processes lock another file.
		var st unix.Stat_t
		if err = fstatat(dir, s.values.name, &st); err == nil && idOf(&st) != s.values.id {
			err = unix.ESTALE
		}
	}
	if err != nil {
		dir.Close()
		s.values.leave()
		return nil, coded("opening", s.path(valuesDir), err)
	}
	return dir, nil
}

// replaceValue replaces a value's file. When it returns nil, the new content is on the disk.
func (s *store) replaceValue(dir *os.File, name string, content []byte) error {
	new, err := s.newTemp(dir, content)
	if err == nil {
		err = in(dir, func(fd int) error { return unix.Renameat(fd, new, fd, name) })
	}
	if err != nil {
		_ = unlink(dir, new)
		return coded("writing", s.path(valuesDir, name), err)
	}
	if err := dir.Sync(); err != nil { // the value is written, but may not survive a loss of power
		return driver.Errorf(driver.CodeUnknown, "syncing %s: %w", dir.Name(), err)
	}
	return nil
}
