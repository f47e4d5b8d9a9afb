//go:build linux || darwin

package filestore

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

var _ driver.Values = (*Store)(nil)

// A value is a file in the directory values, named by the hash of its namespace and key. It contains a
// line with its version, a line with the quoted key, for people, and the data. Put writes a new file,
// syncs it and renames it, all under the flock of values/lock. So a reader needs no lock, and a process
// that is killed leaves the old value or the new one.

// Get implements driver.Values.
func (s *Store) Get(ctx context.Context, key string) ([]byte, string, error) {
	if err := s.enterValue(ctx, key, nil); err != nil {
		return nil, "", err
	}
	defer s.ops.Done()
	return readValue(s.valueFile(key))
}

// Put implements driver.Values.
func (s *Store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if err := s.enterValue(ctx, key, data); err != nil {
		return "", err
	}
	defer s.ops.Done()
	path := s.valueFile(key)
	lock, err := s.lockValues(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // this ends the flock
	switch _, now, err := readValue(path); {
	case err != nil:
		return "", err
	case now != version:
		return "", driver.Conflict(key)
	}
	next := rand.Text()
	content := append([]byte(next+"\n"+strings.ReplaceAll(key, "\n", " ")+"\n"), data...)
	if err := s.replaceValue(path, content); err != nil {
		return "", err
	}
	return next, nil
}

func (s *Store) enterValue(ctx context.Context, key string, data []byte) error {
	if err := driver.CheckValue(key, data); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	return s.enter()
}

func (s *Store) valuesDir() string { return filepath.Join(s.dir, "values") }

func (s *Store) valueFile(key string) string {
	sum := sha256.Sum256([]byte(s.ns + "\x00" + key))
	return filepath.Join(s.valuesDir(), hex.EncodeToString(sum[:]))
}

func readValue(path string) (data []byte, version string, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", coded("reading", path, err)
	}
	head, rest, ok := bytes.Cut(content, []byte("\n"))
	_, data, ok2 := bytes.Cut(rest, []byte("\n"))
	if !ok || !ok2 || len(head) == 0 {
		return nil, "", driver.Errorf(driver.CodeRefused, "the file %s is not a value of this store", path)
	}
	return data, string(head), nil
}

// lockValues waits for the flock of values/lock. The caller closes the file, which ends the flock.
func (s *Store) lockValues(ctx context.Context) (*os.File, error) {
	path := filepath.Join(s.valuesDir(), "lock")
	if err := os.Mkdir(s.valuesDir(), 0o700); err == nil {
		// Chmod sets the mode without the umask, because other users may share the directory.
		if err := os.Chmod(s.valuesDir(), s.mode); err != nil {
			return nil, coded("creating", s.valuesDir(), err)
		}
	}
	for {
		lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, coded("opening", path, err)
		}
		_ = lock.Chmod(s.fileMode()) // it fails if another user created the file, but then that user has set the mode
		if err := s.pollFlock(ctx, lock); err != nil {
			_ = lock.Close()
			return nil, err
		}
		// If the file was deleted meanwhile, other processes lock a new one.
		own, err := lock.Stat()
		there, terr := os.Stat(path)
		if err == nil && terr == nil && os.SameFile(own, there) {
			return lock, nil
		}
		_ = lock.Close()
		if err := errors.Join(err, terr); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, coded("checking", path, err)
		}
	}
}

// pollFlock waits for the flock of a file by polling, because a blocking flock cannot be cancelled. A
// process keeps the flock no longer than three syncs take.
func (s *Store) pollFlock(ctx context.Context, f *os.File) error {
	for n := 0; ; n++ {
		err := flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK {
			return coded("locking", f.Name(), err)
		}
		select {
		case <-time.After(mathrand.N(time.Millisecond << min(n, 4))):
		case <-ctx.Done():
			return driver.Errorf(driver.CodeUnavailable, "waiting for the lock of %s: %w", f.Name(), ctx.Err())
		case <-s.done:
			return errClosed
		}
	}
}

// replaceValue replaces a value's file. When it returns nil, the new content is on the disk.
func (s *Store) replaceValue(path string, content []byte) error {
	temp, err := os.CreateTemp(s.valuesDir(), ".new-")
	if err != nil {
		return coded("creating a file in", s.valuesDir(), err)
	}
	_, err = temp.Write(content)
	err = errors.Join(err, temp.Chmod(s.fileMode()), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return coded("writing", path, err)
	}
	dir, err := os.Open(s.valuesDir())
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil { // the value is written, but may not survive a loss of power
		return driver.Errorf(driver.CodeUnknown, "syncing %s: %w", s.valuesDir(), err)
	}
	return nil
}
