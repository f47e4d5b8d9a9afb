//go:build linux || darwin

package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/filesystem"
)

// format is the content of the file named format. A version with another layout has another content,
// so that each version refuses the directories of the other.
const format = "holdfast filestore 1\n"

// sockNameLen is the length of a session's socket name in the sessions directory, with its slash.
const sockNameLen = 1 + sidLen + len(".sock")

func (s *Store) bucketsDir() string  { return filepath.Join(s.dir, "buckets") }
func (s *Store) sessionsDir() string { return filepath.Join(s.dir, "sessions") }

// fileMode returns the mode of files: that of the directory without execution.
func (s *Store) fileMode() fs.FileMode { return s.mode &^ 0o111 }

// refuse returns the error of Open for this directory. It is a message for users.
func (s *Store) refuse(format string, a ...any) error {
	return driver.Errorf(driver.CodeRefused, "filestore: directory %s: %w", s.dir, fmt.Errorf(format, a...))
}

// prepare checks the directory, and creates it and its missing files.
func (s *Store) prepare(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return driver.Errorf(driver.CodeUnavailable, "filestore: opening %s: %w", s.dir, err)
	}
	made, err := s.makeDir()
	if err != nil {
		return err
	}
	if err := s.checkPlace(); err != nil {
		return err
	}
	if info, err := os.Stat(s.bucketsDir()); err == nil && !s.modeGiven {
		// The process that shared the directory has decided the mode. Another process must not
		// create files that the others cannot open.
		s.mode = info.Mode() & 0o777
	}
	if made {
		if err := s.adopt(s.dir); err != nil {
			return s.refuse("%w", err)
		}
	}
	if err := s.layout(); err != nil {
		return s.refuse("%w: give a directory that this user may write", err)
	}
	if err := s.checkFiles(); err != nil {
		return err
	}
	return s.checkSocketPath()
}

// makeDir creates the directory if it is missing, and reports whether it did.
func (s *Store) makeDir() (made bool, err error) {
	info, err := os.Stat(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		made = true
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			info, err = os.Stat(s.dir)
		}
		if err != nil {
			return made, s.refuse("it cannot be created: %w: give a directory that this user may create", err)
		}
	}
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return made, s.refuse("a part of the path is a file: give a directory")
	case err != nil:
		return made, s.refuse("%w: give a directory that this user may use", err)
	case !info.IsDir():
		return made, s.refuse("this is a file: give a directory")
	}
	return made, nil
}

// checkPlace checks the file system and the owner of the directory.
func (s *Store) checkPlace() error {
	switch name, local, err := filesystem.Of(s.dir); {
	case err != nil:
		return s.refuse("%w: its file system cannot be found out", err)
	case !local && !slices.Contains(s.allowed, name):
		return s.refuse("its file system is %s, which is not known to be local to this machine; locks on a network file system keep no other machine out: "+
			"give a directory on a local disk, or use a server's store; if no other machine uses the directory, allow it with AllowFileSystem(%q) (?filesystem=%s in a URL)",
			name, name, name)
	}
	var st unix.Stat_t
	if err := stat(s.dir, &st); err != nil {
		return s.refuse("%w", err)
	}
	if int(st.Uid) != s.uid && s.mode&0o077 == 0 {
		return s.refuse("it belongs to user %d and this process runs as user %d: give a directory of this user's own, or share one with Mode(0770) (?mode=0770 in a URL)", st.Uid, s.uid)
	}
	return nil
}

// checkFiles checks the rights to the subdirectories, and the format.
func (s *Store) checkFiles() error {
	for _, dir := range []string{s.bucketsDir(), s.sessionsDir()} {
		if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return s.refuse("%s cannot be written: %w: give a directory that this user may write, or let its owner share it with Mode(0770)", dir, err)
		}
	}
	b, err := os.ReadFile(filepath.Join(s.dir, "format"))
	if err != nil {
		return s.refuse("%w: give a directory that this user may read", err)
	}
	if string(b) != format {
		return s.refuse("its format is %q, and this version knows %q: use the version of holdfast that made it, or another directory", clip(string(b)), format)
	}
	return nil
}

// checkSocketPath compares the path of a session's socket with the limit of the system.
func (s *Store) checkSocketPath() error {
	limit := len(unix.RawSockaddrUnix{}.Path) - 1 // without its NUL
	if len(s.sessionsDir())+sockNameLen <= limit {
		return nil
	}
	if canShorten() {
		s.shorten = true
		return nil
	}
	return s.refuse("the path is %d bytes long, and with the %d of a socket's name at most %d are allowed here: give a shorter one",
		len(s.dir), len("/sessions")+sockNameLen, limit)
}

// layout creates the missing subdirectories, and the directory itself if it was removed.
func (s *Store) layout() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	for _, dir := range []string{s.bucketsDir(), s.sessionsDir()} {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := s.adopt(dir); err != nil {
				return err
			}
		case err != nil:
			return err
		case info.Mode()&0o777 != s.mode:
			if err := s.adopt(dir); err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
		}
	}
	return s.writeFormat()
}

// adopt gives a directory the requested mode. Files in a shared directory must belong to its group.
func (s *Store) adopt(dir string) error {
	m := s.mode
	if m&0o070 != 0 {
		m |= fs.ModeSetgid
	}
	return os.Chmod(dir, m)
}

// writeFormat creates the file named format with its whole content in one step, because another
// process may read it at any time.
func (s *Store) writeFormat() error {
	path := filepath.Join(s.dir, "format")
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(s.dir, "format.")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(format)
	err = errors.Join(err, f.Chmod(s.fileMode()), f.Close())
	if err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return os.Rename(f.Name(), path)
	}
	return nil
}

// checkDir returns the absolute path of a directory.
func checkDir(dir string) (string, error) {
	switch {
	case dir == "":
		return "", driver.Errorf(driver.CodeInvalid, "filestore: no directory given: give a path, or that of DefaultDir")
	case strings.ContainsRune(dir, 0):
		return "", driver.Errorf(driver.CodeInvalid, "filestore: directory %q contains a NUL byte", dir)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", driver.Errorf(driver.CodeInvalid, "filestore: directory %q: %w", dir, err)
	}
	return abs, nil
}
