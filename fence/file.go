//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

func (f *file) write(ctx context.Context, token uint64, write func(io.Writer) error) error {
	temp, err := f.createReplacement(token)
	if err != nil {
		return f.failed("create temporary file", err)
	}
	replaced := false
	defer func() {
		_ = temp.Close() // already closed below unless a step failed
		if !replaced {
			_ = os.Remove(temp.Name()) // if this fails, a later sweep removes the file
		}
	}()
	if err := write(temp); err != nil {
		return err
	}
	// Sync before the rename: otherwise the name could belong to an empty file
	// after a loss of power.
	if err := temp.Sync(); err != nil {
		return f.failed("sync temporary file", err)
	}
	if err := temp.Close(); err != nil {
		return f.failed("close temporary file", err)
	}
	return f.locked(ctx, func(record *os.File) error {
		if err := f.raise(record, token); err != nil {
			return err
		}
		if err := os.Rename(temp.Name(), f.path); err != nil {
			return f.failed("replace", err)
		}
		replaced = true
		if err := syncDir(filepath.Dir(f.path)); err != nil {
			return f.failed("replaced, but sync directory", err)
		}
		return nil
	})
}

func (f *file) raiseMark(ctx context.Context, token uint64) error {
	return f.locked(ctx, func(record *os.File) error { return f.raise(record, token) })
}

func (f *file) newest(ctx context.Context) (newest uint64, err error) {
	// newest creates no record where no token was ever recorded.
	if _, err := os.Lstat(f.record); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	err = f.locked(ctx, func(record *os.File) error {
		r, err := f.read(record)
		newest = r.newest()
		return err
	})
	return newest, err
}

// recordFile is the part of [os.File] that raise and read need.
type recordFile interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// raise refuses a smaller token and records a larger one durably. The caller holds
// the record's lock.
func (f *file) raise(record recordFile, token uint64) error {
	r, err := f.read(record)
	if err != nil {
		return err
	}
	newest := r.newest()
	if token < newest {
		return &StaleError{Resource: f.path, Token: token, Newest: newest}
	}
	if token == newest && r.equal() {
		return nil
	}
	if newest == 0 {
		// The record may be new. Its directory entry must be as durable as the
		// content that it protects.
		if err := syncDir(filepath.Dir(f.path)); err != nil {
			return f.failed("sync directory", err)
		}
	}
	// A process that was killed may have left the second copy in the kernel's
	// memory only. It must be on disk before raise overwrites the first copy.
	if err := record.Sync(); err != nil {
		return f.failed("sync token", err)
	}
	// raise writes one copy after the other, so that a loss of power damages at
	// most one, and starts with the worse copy. Copies that differ were left by a
	// process that was killed: its number may be in the kernel's memory only, so
	// raise writes it again even where it is equal.
	for _, i := range r.order() {
		if _, err := record.WriteAt(formatCopy(token), int64(i)*copySpacing); err != nil {
			return f.failed("write token", err)
		}
		if err := record.Sync(); err != nil {
			return f.failed("sync token", err)
		}
	}
	if token > newest {
		f.sweep(token)
	}
	return nil
}

func (f *file) read(record recordFile) (copies, error) {
	var r copies
	for i := range r {
		b := make([]byte, copyLen)
		n, err := record.ReadAt(b, int64(i)*copySpacing)
		if err != nil && !errors.Is(err, io.EOF) {
			return copies{}, f.failed("read token", err)
		}
		r[i].token, r[i].ok = parseCopy(b[:n])
	}
	if !r[0].ok && !r[1].ok {
		return copies{}, fmt.Errorf("%w: %s: neither copy is whole; write no more to %s before you know the newest token", ErrCorrupt, f.record, f.path)
	}
	return r, nil
}

// locked runs do while this goroutine holds the record's lock.
func (f *file) locked(ctx context.Context, do func(record *os.File) error) error {
	for {
		record, err := f.open()
		if err != nil {
			return err
		}
		if err := f.flock(ctx, record); err != nil {
			_ = record.Close()
			return err
		}
		// The record may have been replaced while this goroutine waited. Then its
		// lock protects a file that no other writer opens again.
		same, err := isAt(record, f.record)
		if err == nil && same {
			if err = ended(ctx, f.path); err == nil {
				err = do(record)
			}
			_ = record.Close() // ends the flock; everything was synced
			return err
		}
		_ = record.Close()
		if err != nil {
			return f.failed("look at token record", err)
		}
		if err := ended(ctx, f.path); err != nil {
			return err
		}
	}
}

// open opens the token record, and creates it if it does not exist. A new record
// appears complete, by a link that fails if another process was faster. So an
// empty or incomplete record is always a damaged one.
func (f *file) open() (*os.File, error) {
	record, err := f.openRecord()
	if !errors.Is(err, fs.ErrNotExist) {
		return record, err
	}
	temp, err := f.createTemp(0, 0o666)
	if err != nil {
		return nil, f.failed("create token record", err)
	}
	defer func() {
		_ = temp.Close() // synced below
		_ = os.Remove(temp.Name())
	}()
	for i := range (copies{}) {
		if _, err := temp.WriteAt(formatCopy(0), int64(i)*copySpacing); err != nil {
			return nil, f.failed("create token record", err)
		}
	}
	if err := temp.Sync(); err != nil {
		return nil, f.failed("create token record", err)
	}
	// The record exists now: either this process created it or another one did,
	// which may have swept this process's temporary file.
	lerr := os.Link(temp.Name(), f.record)
	if record, err = f.openRecord(); err != nil {
		return nil, errors.Join(err, lerr)
	}
	return record, nil
}

// openRecord opens an existing token record. It refuses a link: the tokens of another file could be behind it.
func (f *file) openRecord() (*os.File, error) {
	record, err := os.OpenFile(f.record, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, f.failed("open token record", err)
	}
	if info, err := record.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = record.Close()
		return nil, f.failed("open token record", cmp.Or(err, errors.New("it is not a regular file")))
	}
	return record, nil
}

// flock waits for the lock by polling. A blocking flock cannot be cancelled and
// occupies a thread. Holders keep the lock for a few milliseconds, so polling is
// cheap.
func (f *file) flock(ctx context.Context, record *os.File) error {
	for poll := (backoff.Backoff{First: 400 * time.Microsecond, Max: 20 * time.Millisecond}); ; {
		err := unix.Flock(int(record.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
		case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return fmt.Errorf("%w: %s: file locks: %w", ErrUnsupported, f.record, err)
		default:
			return f.failed("lock token record", err)
		}
		if poll.Sleep(ctx) != nil {
			return ended(ctx, f.path)
		}
	}
}

// createReplacement creates the temporary file that a rename makes the guarded
// one. It has the permissions of the present file from the start: otherwise others
// could read a secret while it is written.
func (f *file) createReplacement(token uint64) (*os.File, error) {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f.createTemp(token, 0o666)
	}
	if err != nil {
		return nil, err
	}
	temp, err := f.createTemp(token, info.Mode().Perm())
	if err != nil {
		return nil, err
	}
	// The umask may have removed some permissions.
	if err := temp.Chmod(info.Mode().Perm()); err != nil {
		_ = temp.Close()
		_ = os.Remove(temp.Name())
		return nil, err
	}
	return temp, nil
}

// createTemp creates a file beside the guarded one. Its name contains the token of
// its writer, for sweep.
func (f *file) createTemp(token uint64, mode fs.FileMode) (*os.File, error) {
	for try := 0; ; try++ {
		name := fmt.Sprintf("%s%d-%08x", f.tempPrefix(), token, rand.Uint32())
		temp, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if err == nil || !errors.Is(err, fs.ErrExist) || try == 100 {
			return temp, err
		}
	}
}

func (f *file) tempPrefix() string {
	return filepath.Join(filepath.Dir(f.path), "."+filepath.Base(f.path)+".fence-")
}

// sweep removes the temporary files of writers that were killed. A dead writer
// cannot be distinguished from a paused one. With a smaller token the difference
// does not matter: the guard refuses its write. A file that cannot be removed does
// no harm.
func (f *file) sweep(token uint64) {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return
	}
	prefix := filepath.Base(f.tempPrefix())
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(rest, "-")
		// Token 0 marks a temporary token record. The record exists now.
		if n, err := strconv.ParseUint(digits, 10, 64); err == nil && n < token {
			_ = os.Remove(filepath.Join(filepath.Dir(f.path), e.Name()))
		}
	}
}

func isAt(file *os.File, path string) (bool, error) {
	ours, err := file.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(ours, there), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}
