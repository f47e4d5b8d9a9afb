//go:build linux || darwin

package filestore

import (
	"context"
	"io/fs"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// fileID identifies a file, as long as a process has it open.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), uint64(st.Ino)} }

// lockFile is a file whose flock guards a critical section of all processes. sem guards the fields that change, except
// used.
type lockFile struct {
	store *store
	dir   string // the subdirectory
	name  string
	path  string
	sem   chan struct{}
	fd    int         // -1 if the file is not open
	id    fileID      // of the open file
	used  atomic.Bool // the file stays open after the critical section
}

func (s *store) lockFile(dir, name string) lockFile {
	return lockFile{store: s, dir: dir, name: name, path: s.path(dir, name), sem: make(chan struct{}, 1), fd: -1}
}

// enter enters the critical section. If another process is stopped in it, enter waits until ctx ends or done is
// closed. If the file does not exist, enter creates it, or without create excludes only the goroutines of this store.
func (f *lockFile) enter(ctx context.Context, done <-chan struct{}, create bool) error {
	if err := ctx.Err(); err != nil {
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	if err := f.reserveFile(ctx, done); err != nil {
		return err
	}
	for {
		if f.fd < 0 {
			if err := f.open(create); err != nil {
				<-f.sem
				return err
			}
			if f.fd < 0 {
				return nil
			}
		}
		if lent, err := f.flock(ctx, done); err != nil {
			if !lent {
				<-f.sem
			}
			return err
		}
		current, err := f.isCurrent()
		if err != nil {
			<-f.sem
			return err
		}
		if current {
			return nil
		}
	}
}

// leave leaves the critical section.
func (f *lockFile) leave() {
	switch {
	case f.fd < 0:
	case f.used.Load():
		flock(f.fd, unix.LOCK_UN)
	default:
		f.forget()
	}
	<-f.sem
}

// reserveFile waits for sem. If it returns nil, the caller frees sem.
func (f *lockFile) reserveFile(ctx context.Context, done <-chan struct{}) error {
	select { // a free sem is taken even if ctx has ended
	case f.sem <- struct{}{}:
		return nil
	default:
	}
	select {
	case f.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return f.stalled(ctx)
	case <-done:
		return calls.ErrClosed
	}
}

// isCurrent reports whether the locked file is the one at the path, which is the valid one. If not, other
// processes may use a new file. isCurrent then closes this one, and notifies the holders with entries there.
// It does the same if it cannot check the path.
func (f *lockFile) isCurrent() (bool, error) {
	var st unix.Stat_t
	err := stat(f.path, &st)
	if err == nil && idOf(&st) == f.id {
		return true, nil
	}
	old := f.id
	f.forget()
	f.store.tasks.Go(func() { f.store.replaced(f, old) })
	if err != nil && err != unix.ENOENT && err != unix.ENOTDIR {
		return false, coded("checking", f.path, err)
	}
	return false, nil
}

// flock locks the file. If another process has it locked, a goroutine waits for the lock, because a
// blocking flock cannot be cancelled. If the wait ends first, lent is true: the goroutine keeps sem. When
// it gets the lock, it leaves the critical section.
func (f *lockFile) flock(ctx context.Context, done <-chan struct{}) (lent bool, err error) {
	if err = flock(f.fd, unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		return false, f.lockError(err)
	}
	got, abandoned := make(chan error), make(chan struct{})
	fd := f.fd
	if !f.store.tasks.Go(func() {
		err := flock(fd, unix.LOCK_EX)
		select {
		case got <- err:
		case <-abandoned:
			if f.store.tasks.Stopped() {
				f.forget()
			}
			f.leave()
		}
	}) {
		return false, calls.ErrClosed
	}
	select {
	case err := <-got:
		return false, f.lockError(err)
	case <-ctx.Done():
		close(abandoned)
		return true, f.stalled(ctx)
	case <-done:
		close(abandoned)
		return true, calls.ErrClosed
	}
}

func (f *lockFile) lockError(err error) error {
	if err == nil {
		return nil
	}
	return coded("locking", f.path, err)
}

func (f *lockFile) stalled(ctx context.Context) error {
	return driver.Errorf(driver.CodeUnavailable, "%w while another process kept %s locked: it may be stopped", ctx.Err(), f.path)
}

// forget closes the descriptor, which frees the lock.
func (f *lockFile) forget() {
	if f.fd >= 0 {
		unix.Close(f.fd)
		f.fd, f.id = -1, fileID{}
	}
}

// open opens the file, if it exists. With create it makes a missing file.
func (f *lockFile) open(create bool) error {
	fd, st, err := f.openFile(create)
	if err == unix.ENOENT && !create {
		return nil
	}
	if err == unix.ENOENT {
		// There is no subdirectory yet, or another process has removed the whole directory.
		if err := f.store.layout(f.dir); err != nil {
			return coded("creating", f.store.dir, err)
		}
		fd, st, err = f.openFile(create)
	}
	if err != nil {
		return coded("opening", f.path, err)
	}
	if want := f.store.fileMode(); fs.FileMode(st.Mode)&0o777 != want && int(st.Uid) == f.store.uid {
		// The umask has removed bits.
		unix.Fchmod(fd, uint32(want))
	}
	f.fd, f.id = fd, idOf(&st)
	return nil
}

// openFile opens the file in the directory at the store's path. With create it makes a missing file. It does
// not combine both in one call: some systems let no user do that with another user's file.
func (f *lockFile) openFile(create bool) (fd int, st unix.Stat_t, err error) {
	if err := f.store.refresh(false); err != nil {
		return -1, st, err
	}
	dir, err := f.store.subdir(f.dir)
	if err != nil {
		return -1, st, err
	}
	defer dir.Close()
	for {
		fd, st, err = f.store.openFile(dir, f.name, unix.O_RDWR)
		if err != unix.ENOENT || !create {
			return fd, st, err
		}
		fd, st, err = f.store.openFile(dir, f.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		if err != unix.EEXIST {
			return fd, st, err
		}
	}
}
