package filestore_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestPutWaitsForTheLockAtThePath replaces the lock file of the values while a Put waits for it. It requires
// that the Put waits for the new file, which another process has locked.
func TestPutWaitsForTheLockAtThePath(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	version, err := s.Put(t.Context(), "k", []byte("1"), "")
	must.Succeed(t, err)
	path := filepath.Join(dir, "values", "lock")
	lock := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		must.Succeed(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	old := lock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	put := make(chan error, 1)
	go func() {
		_, err := s.Put(ctx, "k", []byte("2"), version)
		put <- err
	}()
	for descriptorsOf(t, path) < 2 { // until the Put has opened the old file
		time.Sleep(time.Millisecond)
	}
	must.Succeed(t, os.Remove(path))
	lock()
	old.Close()
	if err := <-put; s.Classify(err) != driver.CodeUnavailable {
		t.Errorf("the Put did not wait for the new lock file: %v", err)
	}
}

// descriptorsOf returns the number of this process's descriptors of a file.
func descriptorsOf(t *testing.T, path string) (n int) {
	all, err := filepath.Glob("/proc/self/fd/*")
	must.Succeed(t, err)
	for _, fd := range all {
		if to, err := os.Readlink(fd); err == nil && to == path {
			n++
		}
	}
	return n
}
