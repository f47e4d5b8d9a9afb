package fence

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/filesystem"
)

// Files guards the content of the files of one directory against processes of one
// machine. A resource is the name of a file there, with slashes for subdirectories.
//
//	guard, err := fence.NewFiles("/var/lib/billing")
//	...
//	err = guard.Write(ctx, "state.json", lock.Token(), state)
//
// Every writer uses Files; readers read the files directly. Files is safe for
// concurrent use and keeps no file open. It needs a file system with flock and hard links, and
// directories in which its writers may create files. A symbolic link may name another file of the directory, and
// nothing outside. Every user with the right to write the directory can replace the files and their records, so give
// no such right to a user whom the writers do not trust. The file system has to be local: see
// [AllowFileSystem]. Systems other than Linux and macOS do not report that, and none is refused. On systems without
// flock, such as Windows, its methods return [ErrUnsupported].
//
// # Why it is atomic
//
// Beside the file PATH there is PATH.fence, which holds the largest token seen and whose flock
// serializes the writers. A write puts the new content into a temporary file and syncs it
// before it takes the lock. So a writer that is paused at this point does not block the others.
// Under the lock the write then
//
//  1. reads the recorded token and refuses a smaller one;
//  2. records a larger one, and syncs it;
//  3. renames the temporary file to PATH, and syncs the directory.
//
// These are two files, so a crash can happen between 2 and 3. Then the token is the
// new one and the content the old one. The write has not returned success, and the
// guard refuses earlier holders. The other order would leave new content under an
// old token, and an older holder could overwrite it. The kernel
// releases the lock of a process that is killed. A process that is stopped during
// the few milliseconds under the lock keeps it until the process continues.
//
// Never delete or move PATH.fence, and never restore it from a backup without PATH:
// the guard would then accept old tokens. The first write creates it, with
// the permissions that the umask gives. It contains the number twice, each copy
// with a checksum, and a copy is overwritten only while the other one is valid.
type Files struct {
	dir     string
	allowed []string // see AllowFileSystem
}

// FilesOption configures NewFiles.
type FilesOption func(*Files)

// AllowFileSystem allows a file system that is not known to be local to this machine. The error of
// a write contains the name, such as "fuse". Use this option only if no other machine uses the
// directory: flock may exclude only the processes of one machine.
func AllowFileSystem(name string) FilesOption {
	return func(f *Files) { f.allowed = append(f.allowed, name) }
}

// NewFiles returns the guard of the files in dir, which must exist. Errors wrap
// [ErrInvalid] or [ErrUnavailable].
func NewFiles(dir string, o ...FilesOption) (*Files, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: directory is empty", ErrInvalid)
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, dir, err)
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is not a directory", ErrInvalid, dir)
	}
	f := &Files{dir: abs}
	for _, set := range o {
		set(f)
	}
	return f, nil
}

// Write replaces the content of the file with data. See [Files.WriteFunc].
func (f *Files) Write(ctx context.Context, resource string, token uint64, data []byte) error {
	return f.WriteFunc(ctx, resource, token, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFunc replaces the file with the output of write. If a larger token has been seen, the
// error is a [*StaleError] and the file stays unchanged. Readers see the old file or the new
// one, never a mixture. When WriteFunc has returned nil, the new content survives a loss of
// power. The new file keeps the permissions of the old one, not its owner or other names.
//
// Write runs before WriteFunc takes the lock and checks the token, so its output
// may be discarded. It must not depend on the content of the file: see
// [Files.Raise]. If write fails, WriteFunc returns its error unchanged and does not
// raise the token.
//
// Errors wrap [ErrStale], [ErrInvalid], [ErrUnavailable], [ErrCorrupt] or
// [ErrUnsupported]. An ErrUnavailable after the rename means that the new content may not
// survive a loss of power.
func (f *Files) WriteFunc(ctx context.Context, resource string, token uint64, write func(io.Writer) error) error {
	file, err := f.checked(ctx, resource, token)
	if err != nil {
		return err
	}
	return file.write(ctx, token, write)
}

// Raise records a token without writing the file. A holder that reads the file and
// then writes a result of that content calls Raise before it reads. After Raise
// the guard refuses older holders, so the content stays as it was read until this
// holder or a newer one writes. Its errors are those of [Files.WriteFunc].
func (f *Files) Raise(ctx context.Context, resource string, token uint64) error {
	file, err := f.checked(ctx, resource, token)
	if err != nil {
		return err
	}
	return file.raiseMark(ctx, token)
}

// Newest returns the largest token seen, or 0 if there was none. It is for
// people and tests: a write may raise the token before Newest returns. Errors
// wrap [ErrInvalid], [ErrUnavailable], [ErrCorrupt] or [ErrUnsupported].
func (f *Files) Newest(ctx context.Context, resource string) (uint64, error) {
	if err := ended(ctx, resource); err != nil {
		return 0, err
	}
	file, err := f.file(resource)
	if err != nil {
		return 0, err
	}
	return file.newest(ctx)
}

func (f *Files) checked(ctx context.Context, resource string, token uint64) (*file, error) {
	if err := CheckArguments(ctx, resource, token); err != nil {
		return nil, err
	}
	return f.file(resource)
}

// file returns the guard of one file. The file may be missing, but its directory must exist.
// file follows symbolic links below the directory, so that all names of a file share one guard.
func (f *Files) file(resource string) (*file, error) {
	if err := checkResource(resource); err != nil {
		return nil, err
	}
	if local := filepath.FromSlash(resource); !filepath.IsLocal(local) || filepath.Clean(local) == "." || strings.HasSuffix(local, ".fence") {
		return nil, fmt.Errorf("%w: resource %q, want the name of a file below %s that does not end in .fence", ErrInvalid, resource, f.dir)
	}
	path := filepath.Join(f.dir, filepath.FromSlash(resource))
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		// Another writer may have created the file since EvalSymlinks: then it is a file and no link.
		if info, lerr := os.Lstat(path); lerr == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%w: %s is a symbolic link to a file that does not exist", ErrInvalid, path)
		}
		var dir string
		if dir, err = filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			real = filepath.Join(dir, filepath.Base(path))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, path, err)
	}
	if inside, err := filepath.Rel(f.dir, real); err != nil || !filepath.IsLocal(inside) || strings.HasSuffix(real, ".fence") {
		return nil, fmt.Errorf("%w: %s leads to %s, want a file below %s that does not end in .fence", ErrInvalid, path, real, f.dir)
	}
	if info, err := os.Stat(real); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrInvalid, path)
	}
	switch name, local, err := filesystem.Of(filepath.Dir(real)); {
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, path, err)
	case !local && !slices.Contains(f.allowed, name):
		return nil, fmt.Errorf("%w: the file system of %s is %s, which is not known to be local to this machine; if no other machine uses the directory, allow it with AllowFileSystem(%q)", ErrUnsupported, path, name, name)
	}
	return &file{path: real, record: real + ".fence"}, nil
}

// file guards one file. Path is absolute and has no symbolic links, so that there is one
// name per file.
type file struct{ path, record string }

func (f *file) failed(what string, err error) error {
	return fmt.Errorf("%w: %s: %s: %w", ErrUnavailable, f.path, what, err)
}

// The record has two copies, each a line of text. They are so far apart that no
// disk changes both in one write.
const (
	copySpacing = 4096
	copyMagic   = "holdfast-fence 1 "
	tokenDigits = 19 // of the largest token
	copyLen     = len(copyMagic) + tokenDigits + len(" ") + 8 + len("\n")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// formatCopy returns "holdfast-fence 1 TOKEN CRC\n". TOKEN has tokenDigits decimal digits. CRC is the CRC-32C of the preceding bytes, in 8 hexadecimal digits. A
// record that has seen no token has token 0.
func formatCopy(token uint64) []byte {
	b := fmt.Appendf(make([]byte, 0, copyLen), "%s%0*d ", copyMagic, tokenDigits, token)
	return fmt.Appendf(b, "%08x\n", crc32.Checksum(b, castagnoli))
}

// parseCopy accepts exactly the output of formatCopy.
func parseCopy(b []byte) (token uint64, ok bool) {
	if len(b) != copyLen {
		return 0, false
	}
	token, err := strconv.ParseUint(string(b[len(copyMagic):len(copyMagic)+tokenDigits]), 10, 63)
	if err != nil || string(formatCopy(token)) != string(b) {
		return 0, false
	}
	return token, true
}

type copies [2]struct {
	token uint64
	ok    bool
}

// newest returns the larger token of the valid copies. The smaller one is older: a raise did
// not finish.
func (c copies) newest() uint64 {
	var n uint64
	for _, x := range c {
		if x.ok {
			n = max(n, x.token)
		}
	}
	return n
}

// equal reports whether the last raise has written both copies. Then the token is on disk at
// least once, because raise writes the second copy after the sync of the first.
func (c copies) equal() bool { return c[0].ok && c[1].ok && c[0].token == c[1].token }

// order returns the order in which to overwrite the copies. The invalid or smaller one is
// first, so that the largest token survives a loss of power at any time.
func (c copies) order() [2]int {
	if c[0].ok && (!c[1].ok || c[0].token > c[1].token) {
		return [2]int{1, 0}
	}
	return [2]int{0, 1}
}
