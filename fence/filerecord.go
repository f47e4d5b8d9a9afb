package fence

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// File guards the content of one file against processes of one machine.
//
//	f, err := fence.NewFile("/var/lib/billing/state.json")
//	...
//	err = f.Write(ctx, lock.Token(), state)
//
// Every writer uses a File of the same path; readers read the file directly. A
// File is safe for concurrent use and keeps no file open. It needs a local file
// system with flock and hard links, and a directory in which its writers may
// create files. On systems without flock, such as Windows, its methods return
// [ErrUnsupported].
//
// # Why it is atomic
//
// Beside the file PATH there is PATH.fence, which holds the largest token seen
// and whose flock serializes the writers. A write puts the new content into a
// temporary file and syncs it before it takes the lock, so a writer that is paused
// at this point does not block the others. Under the lock the write then
//
//  1. reads the recorded token and refuses a smaller one;
//  2. records a larger one, and syncs it;
//  3. renames the temporary file to PATH, and syncs the directory.
//
// These are two files, so a crash can happen between 2 and 3. Then the token is
// raised and the content is the old one: the write has failed, it never returned
// success, and the guard refuses earlier holders. The other order would leave new
// content under an old token, and an older holder could overwrite it. The kernel
// releases the lock of a process that is killed. A process that is stopped during
// the few milliseconds under the lock keeps it until it continues.
//
// Never delete or move PATH.fence, or restore it from a backup without PATH:
// without it the guard accepts every old token. The first write creates it, with
// the permissions that the umask gives. It contains the number twice, each copy
// with a checksum, and a copy is overwritten only while the other one is valid.
type File struct {
	path   string // absolute, no symbolic links: one name per file
	record string
}

// NewFile returns the guard of the file at path, which need not exist yet; its
// directory must. Symbolic links are followed now, so that all names of the
// file share one guard. Errors wrap [ErrInvalid] or [ErrUnavailable].
func NewFile(path string) (*File, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: path is empty", ErrInvalid)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, path, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(abs); lerr == nil {
			return nil, fmt.Errorf("%w: %s is a symbolic link to a file that does not exist", ErrInvalid, path)
		}
		var dir string
		if dir, err = filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
			real = filepath.Join(dir, filepath.Base(abs))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, path, err)
	}
	if info, err := os.Stat(real); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrInvalid, path)
	}
	return &File{path: real, record: real + ".fence"}, nil
}

// Path returns the absolute path of the guarded file.
func (f *File) Path() string { return f.path }

func (f *File) failed(what string, err error) error {
	return fmt.Errorf("%w: %s: %s: %w", ErrUnavailable, f.path, what, err)
}

// The record has two copies, each a line of text. They are so far apart that no
// disk changes both in one write.
const (
	copySpacing = 4096
	copyMagic   = "holdfast-fence 1 "
	copyLen     = len(copyMagic) + 19 + 1 + 8 + 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// formatCopy returns "holdfast-fence 1 TOKEN CRC\n" with the token in 19 decimal
// digits, as many as the largest one has, and the CRC-32C of the preceding bytes
// in 8 hexadecimal digits. A record that has seen no token has token 0.
func formatCopy(token uint64) []byte {
	b := fmt.Appendf(make([]byte, 0, copyLen), "%s%019d ", copyMagic, token)
	return fmt.Appendf(b, "%08x\n", crc32.Checksum(b, castagnoli))
}

// parseCopy accepts exactly the output of formatCopy.
func parseCopy(b []byte) (token uint64, ok bool) {
	if len(b) != copyLen {
		return 0, false
	}
	token, err := strconv.ParseUint(string(b[len(copyMagic):len(copyMagic)+19]), 10, 63)
	if err != nil || string(formatCopy(token)) != string(b) {
		return 0, false
	}
	return token, true
}

type copies [2]struct {
	token uint64
	ok    bool
}

// newest returns the larger number of the valid copies: the smaller one precedes a
// raise that did not finish.
func (c copies) newest() uint64 {
	var n uint64
	for _, x := range c {
		if x.ok {
			n = max(n, x.token)
		}
	}
	return n
}

// settled reports whether the last raise has written both copies. Then the number
// is on disk at least once: raise starts the second after the sync of the first.
func (c copies) settled() bool { return c[0].ok && c[1].ok && c[0].token == c[1].token }

// order returns the order in which to overwrite the copies: the worse one first,
// so that the number that counts survives a loss of power at any time.
func (c copies) order() [2]int {
	if c[0].ok && (!c[1].ok || c[0].token > c[1].token) {
		return [2]int{1, 0}
	}
	return [2]int{0, 1}
}
