//go:build linux || darwin

package filestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/filesystem"
)

// format is the content of the file named format. A version with another layout has another content,
// so that each version refuses the directories of the other.
const format = "holdfast filestore 1\n"

// The subdirectories.
const (
	bucketsDir  = "buckets"
	sessionsDir = "sessions"
	valuesDir   = "values"
)

// sockNameLen is the length of a session's socket name in the sessions directory, with its slash.
const sockNameLen = 1 + sidLen + len(".sock")

func (s *store) path(name ...string) string {
	return filepath.Join(append([]string{s.dir}, name...)...)
}

// fileMode returns the mode of files: that of the directory without execution.
func (s *store) fileMode() fs.FileMode { return s.mode &^ 0o111 }

// private reports whether only this user may use the directory.
func (s *store) private() bool { return s.mode&0o077 == 0 }

// refuse returns the error of Open for this directory. It is a message for users.
func (s *store) refuse(format string, a ...any) error {
	return driver.Errorf(driver.CodeRefused, "filestore: directory %s: %w", s.dir, fmt.Errorf(format, a...))
}

// prepare checks the directory, and creates it and its missing files.
func (s *store) prepare(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return driver.Errorf(driver.CodeUnavailable, "filestore: opening %s: %w", s.dir, err)
	}
	if err := s.refresh(true); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := fstatat(s.top.Load(), bucketsDir, &st); err == nil && !s.modeGiven {
		// The process that shared the directory has decided the mode. Another process must not
		// create files that the others cannot open.
		s.mode = fs.FileMode(st.Mode) & 0o777
	}
	if err := s.layout(); hasCode(err) {
		return err
	} else if err != nil {
		return s.refuse("%w: give a directory that this user may write", err)
	}
	if err := s.checkFiles(); err != nil {
		return err
	}
	return s.checkSocketPath()
}

// layout creates the missing subdirectories, and the directory itself if it was removed. also is one that only some
// directories have.
func (s *store) layout(also ...string) error {
	if err := s.refresh(true); err != nil {
		return err
	}
	if err := s.protectTop(); err != nil {
		return err
	}
	for _, name := range append([]string{bucketsDir, sessionsDir}, also...) {
		dir, err := s.makeSubdir(name)
		if err != nil {
			return err
		}
		dir.Close()
	}
	return s.writeFormat()
}

// refresh opens the directory if the open one is not, or no longer, the one at the path. If there is none,
// refresh creates it, or returns ENOENT without create.
func (s *store) refresh(create bool) error {
	s.topMu.Lock()
	defer s.topMu.Unlock()
	if s.tasks.Stopped() {
		return calls.ErrClosed
	}
	old := s.top.Load()
	if old != nil {
		var own, there unix.Stat_t
		if err := fstat(old, &own); err == nil && stat(s.dir, &there) == nil && idOf(&own) == idOf(&there) {
			return nil
		}
	}
	top, err := s.openTop(create)
	if err != nil {
		return err
	}
	if s.top.Store(top); old != nil {
		old.Close()
	}
	return nil
}

// openTop opens the directory. It creates missing directories on the path, or returns ENOENT without create.
func (s *store) openTop(create bool) (*os.File, error) {
	made := false
	for {
		p, err := s.resolve()
		if err != nil {
			return nil, err
		}
		if p.missing {
			if !create {
				return nil, unix.ENOENT
			}
			if err := s.makeDir(p); err != nil {
				return nil, err
			}
			made = true
			continue
		}
		top, err := openDir(p.path)
		var st unix.Stat_t
		if err == nil {
			err = fstat(top, &st)
		}
		switch {
		case err == nil && idOf(&st) != p.id, err == unix.ENOENT:
			top.Close() // it was replaced meanwhile
			continue
		case err == nil:
			err = s.checkTop(top, &st, made)
		default:
			err = s.refuse("%w: give a directory that this user may use", err)
		}
		if err != nil {
			top.Close()
			return nil, err
		}
		return top, nil
	}
}

// place is the result of resolve.
type place struct {
	path    string // without links
	id      fileID
	missing bool   // path is the first directory that does not exist
	foreign string // the last part of the path that belongs to neither this user nor root
	owner   uint32 // of foreign
}

// maxLinks is the number of links that resolve follows, as in Linux.
const maxLinks = 40

// resolve follows the path to the directory. It refuses a path that another user may have laid out: a link
// of another user, or a part of another user in a directory where every user may create files.
func (s *store) resolve() (p place, err error) {
	rest := strings.Split(s.dir, "/")
	p.path = "/"
	var parent, st unix.Stat_t
	for links := 0; ; {
		if err := lstat(p.path, &parent); err != nil {
			return p, s.refuse("%w: give a directory that this user may use", err)
		}
		p.id = idOf(&parent)
		if len(rest) == 0 {
			return p, nil
		}
		path := filepath.Join(p.path, rest[0])
		rest = rest[1:]
		if err := lstat(path, &st); err == unix.ENOENT {
			p.path, p.missing = path, true
			return p, nil
		} else if err != nil {
			return p, s.refuse("%w: give a directory that this user may use", err)
		}
		if len(path) > len(p.path) {
			if err := s.checkPart(&p, path, &parent, &st); err != nil {
				return p, err
			}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			p.path = path
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if links++; err == nil && links > maxLinks {
				err = unix.ELOOP
			}
			if err != nil {
				return p, s.refuse("%w", err)
			}
			if filepath.IsAbs(target) {
				p.path = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
		default:
			if len(rest) > 0 {
				return p, s.refuse("a part of the path is a file: give a directory")
			}
			return p, s.refuse("this is a file: give a directory")
		}
	}
}

// checkPart checks which user has created a part of the path.
func (s *store) checkPart(p *place, path string, parent, st *unix.Stat_t) error {
	switch {
	case st.Uid == 0 || int(st.Uid) == s.uid:
		return nil
	case parent.Mode&0o002 != 0:
		return s.refuse("%s belongs to user %d, and every user may create files in %s: "+
			"give a directory that this user or root has created", path, st.Uid, p.path)
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return s.refuse("%s is a link of user %d, which that user may change: give a path without this link", path, st.Uid)
	}
	p.foreign, p.owner = path, st.Uid
	return nil
}

// makeDir creates a missing directory. It creates nothing where another user could move the new directory
// or its parents, and so choose what this process creates and shares.
func (s *store) makeDir(p place) error {
	if p.foreign != "" {
		return s.refuse("it would be created in %s, which belongs to user %d, and this process runs as user %d: "+
			"create it first, or give a directory of this user's own", p.foreign, p.owner, s.uid)
	}
	var st unix.Stat_t
	parent := filepath.Dir(p.path)
	if err := stat(parent, &st); err == nil && st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 && !s.private() {
		return s.refuse("every user could replace it in %s: create it first, or run chmod +t %s", parent, parent)
	}
	if err := os.Mkdir(p.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return s.refuse("it cannot be created: %w: give a directory that this user may create", err)
	}
	return nil
}

// checkTop checks the file system and the owner of the directory. It sets the mode of one that this process
// has made.
func (s *store) checkTop(top *os.File, st *unix.Stat_t, made bool) error {
	switch name, local, err := filesystem.Of(s.dir); {
	case err != nil:
		return s.refuse("%w: its file system cannot be found out", err)
	case !local && !slices.Contains(s.allowed, name):
		return s.refuse("its file system is %s, which is not known to be local to this machine; locks on a network file system keep no other machine out: "+
			"give a directory on a local disk, or use a server's store; if no other machine uses the directory, allow it with AllowFileSystem(%q) (?filesystem=%s in a URL)",
			name, name, name)
	}
	own := int(st.Uid) == s.uid
	if !own && (s.private() || !s.modeGiven) {
		return s.refuse("it belongs to user %d and this process runs as user %d: give a directory of this user's own, or share one with Mode(0770) (?mode=0770 in a URL)", st.Uid, s.uid)
	}
	if !own || !made {
		return nil
	}
	if err := top.Chmod(s.dirMode()); err != nil {
		return s.refuse("%w", err)
	}
	return nil
}

// protectTop makes the directory sticky if several users may write it. So no user can replace the
// subdirectories of another one.
func (s *store) protectTop() error {
	info, err := s.top.Load().Stat()
	if err != nil {
		return err
	}
	mode := info.Mode()
	if s.private() || mode&0o022 == 0 || mode&fs.ModeSticky != 0 {
		return nil
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != s.uid {
		return s.refuse("its users could replace each other's directories in it: let its owner, user %d, run chmod +t %s", st.Uid, s.dir)
	}
	return s.top.Load().Chmod(mode | fs.ModeSticky)
}

// dirMode returns the mode of directories. Files in a shared directory must belong to its group.
func (s *store) dirMode() fs.FileMode {
	if s.mode&0o070 != 0 {
		return s.mode | fs.ModeSetgid
	}
	return s.mode
}

// subdir opens a subdirectory. The caller closes it. The error is ENOENT if there is none.
func (s *store) subdir(name string) (*os.File, error) {
	fd, err := openat(s.top.Load(), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch err {
	case nil:
	case unix.ENOTDIR, unix.ELOOP:
		return nil, driver.Broken(s.path(name), "it is a link or a file, not a directory")
	default:
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), s.path(name))
	var st unix.Stat_t
	if err = fstat(dir, &st); err == nil {
		err = s.checkOwner(&st, dir.Name())
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// makeSubdir opens a subdirectory, and creates it if it is missing. It sets the mode of one of this user.
func (s *store) makeSubdir(name string) (*os.File, error) {
	dir, err := s.subdir(name)
	if err == unix.ENOENT {
		err = in(s.top.Load(), func(fd int) error { return unix.Mkdirat(fd, name, uint32(s.mode)) })
		if err != nil && err != unix.EEXIST {
			return nil, err
		}
		dir, err = s.subdir(name)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = fstat(dir, &st); err == nil && int(st.Uid) == s.uid && fs.FileMode(st.Mode)&0o777 != s.mode {
		err = dir.Chmod(s.dirMode())
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// openFile opens a file of a directory, and describes it. It refuses a link, a file with another hard link,
// one that is not regular, and in a private directory one of another user. The error is ENOENT if there is none.
func (s *store) openFile(dir *os.File, name string, flags int) (fd int, st unix.Stat_t, err error) {
	path := filepath.Join(dir.Name(), name)
	fd, err = openat(dir, name, flags, uint32(s.fileMode()))
	switch err {
	case nil:
	case unix.ELOOP, unix.ENXIO:
		return -1, st, driver.Broken(path, "it is not a regular file")
	default:
		return -1, st, err
	}
	switch err = unix.Fstat(fd, &st); {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = driver.Broken(path, "it is not a regular file")
	case st.Nlink > 1 && name != formatFile: // a new format has two names for a moment
		err = driver.Broken(path, "it has a second name (hard link)")
	default:
		err = s.checkOwner(&st, path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// checkOwner refuses another user's file in a private directory.
func (s *store) checkOwner(st *unix.Stat_t, path string) error {
	if s.private() && int(st.Uid) != s.uid {
		return driver.Broken(path, fmt.Sprintf("it belongs to user %d and this process runs as user %d", st.Uid, s.uid))
	}
	return nil
}

// checkFiles checks the rights to the subdirectories, and the format.
func (s *store) checkFiles() error {
	for _, name := range []string{bucketsDir, sessionsDir} {
		err := in(s.top.Load(), func(fd int) error {
			return unix.Faccessat(fd, name, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		})
		if err != nil {
			return s.refuse("%s cannot be written: %w: give a directory that this user may write, or let its owner share it with Mode(0770)", s.path(name), err)
		}
	}
	fd, _, err := s.openFile(s.top.Load(), formatFile, unix.O_RDONLY)
	if err != nil {
		return s.refuse("%w: give a directory that this user may read", err)
	}
	defer unix.Close(fd)
	b := make([]byte, 256)
	n, err := pread(fd, b, 0)
	if b = b[:n]; err != nil {
		return s.refuse("%w: give a directory that this user may read", err)
	}
	if string(b) != format {
		return s.refuse("its format is %q, and this version knows %q: use the version of holdfast that made it, or another directory", clip(string(b)), format)
	}
	return nil
}

// checkSocketPath compares the path of a session's socket with the limit of the system.
func (s *store) checkSocketPath() error {
	limit := len(unix.RawSockaddrUnix{}.Path) - 1 // without its NUL
	if shortSockets || len(s.path(sessionsDir))+sockNameLen <= limit {
		return nil
	}
	return s.refuse("the path is %d bytes long, and with the %d of a socket's name at most %d are allowed here: give a shorter one",
		len(s.dir), len("/sessions")+sockNameLen, limit)
}

const formatFile = "format"

// writeFormat creates the file named format with its whole content in one step, because another
// process may read it at any time.
func (s *store) writeFormat() error {
	top := s.top.Load()
	var st unix.Stat_t
	if err := fstatat(top, formatFile, &st); err != unix.ENOENT {
		return err
	}
	temp, err := s.newTemp(top, []byte(format))
	defer unlink(top, temp)
	if err != nil {
		return err
	}
	return in(top, func(fd int) error {
		if err := unix.Linkat(fd, temp, fd, formatFile, 0); err != nil && err != unix.EEXIST {
			return unix.Renameat(fd, temp, fd, formatFile)
		}
		return nil
	})
}

// newTemp makes a file of another name in a directory, with its whole content on the disk. The caller removes it,
// also after an error.
func (s *store) newTemp(dir *os.File, content []byte) (name string, err error) {
	name = ".new-" + rand.Text()
	fd, _, err := s.openFile(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return name, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name))
	_, err = f.Write(content)
	return name, errors.Join(err, f.Chmod(s.fileMode()), f.Sync(), f.Close())
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
