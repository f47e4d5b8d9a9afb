package filestore

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Option configures a store.
type Option func(*config)

type config struct {
	namespace string
	mode      fs.FileMode
	modeGiven bool
	allowed   []string // the file systems of AllowFileSystem
}

// Namespace separates the names of this store from the names in other namespaces of the same
// directory. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// Mode sets which users may lock in the directory. With 0700, the default, only the current
// user may; with 0770 also the directory's group, and with 0777 all users of the machine. The umask has no
// effect. Every user that may lock may also break locks. A shared directory is sticky: Open sets this bit for
// a directory of this user, and refuses another one without it.
func Mode(m fs.FileMode) Option {
	return func(c *config) { c.mode, c.modeGiven = m, true }
}

// AllowFileSystem lets Open use a directory on a file system that is not known to be local to this
// machine. The error of Open contains the name, such as "fuse". Use this option only if no other machine
// uses the directory. On such a file system flock may be local to one machine, and sessions of
// another machine look dead.
func AllowFileSystem(name string) Option {
	return func(c *config) { c.allowed = append(c.allowed, name) }
}

func configure(options []Option) (config, error) {
	c := config{mode: 0o700}
	for _, o := range options {
		o(&c)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return c, driver.Errorf(driver.CodeInvalid, "filestore: %w", err)
	}
	switch c.mode {
	case 0o700, 0o770, 0o777:
		return c, nil
	}
	return c, driver.Errorf(driver.CodeInvalid, "filestore: mode %#o: give 0700 (this user), 0770 (and the group) or 0777 (all users)", uint32(c.mode))
}

// DefaultDir returns the default directory of this user's locks: $XDG_STATE_HOME/holdfast, else
// ~/.local/state/holdfast, on macOS ~/Library/Application Support/holdfast.
func DefaultDir() (string, error) {
	if runtime.GOOS != "darwin" {
		if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
			return filepath.Join(dir, "holdfast"), nil
		}
	}
	home, err := os.UserHomeDir()
	if err == nil && !filepath.IsAbs(home) {
		err = fmt.Errorf("home directory %q is not an absolute path", home)
	}
	if err != nil {
		return "", driver.Errorf(driver.CodeInvalid, "filestore: no default directory (%w): set HOME or XDG_STATE_HOME, or give a directory", err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "holdfast"), nil
	}
	return filepath.Join(home, ".local", "state", "holdfast"), nil
}

func init() { driver.Register("file", openURL) }

// openURL opens file:///dir, file:///dir?mode=0770, file:///dir?filesystem=fuse
// (see AllowFileSystem), and file: for DefaultDir.
func openURL(ctx context.Context, u *url.URL, namespace string) (driver.Store, error) {
	dir, o, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	s, err := Open(ctx, dir, append(o, Namespace(namespace))...)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Dir returns the directory that a file URL names. It does not create the directory. It returns an
// error of code CodeInvalid for a URL that Open would refuse.
func Dir(rawURL string) (string, error) {
	u, err := storeurl.Parse(rawURL, "file")
	if err != nil {
		return "", driver.Errorf(driver.CodeInvalid, "filestore: URL: %w", err)
	}
	dir, o, err := parseURL(u)
	if err == nil {
		_, err = configure(o)
	}
	return dir, err
}

func parseURL(u *url.URL) (dir string, o []Option, err error) {
	invalid := func(err error) (string, []Option, error) {
		return "", nil, driver.Errorf(driver.CodeInvalid, "filestore: URL: %w", err)
	}
	switch {
	case u.User != nil || u.Host != "":
		return invalid(fmt.Errorf("a file URL has no host: write three slashes, as in file:///var/lib/locks"))
	case u.Opaque != "":
		return invalid(fmt.Errorf("the path is relative: give an absolute one, as in file:///var/lib/locks"))
	}
	query, err := storeurl.Query(u, "file:///var/lib/locks")
	if err != nil {
		return invalid(err)
	}
	if name := query.Take("filesystem"); name != "" {
		o = append(o, AllowFileSystem(name))
	}
	if mode := query.Take("mode"); mode != "" {
		m, err := strconv.ParseUint(mode, 8, 32)
		if err != nil {
			return invalid(fmt.Errorf("mode %q is not an octal number such as 0770", mode))
		}
		o = append(o, Mode(fs.FileMode(m)))
	}
	if err := query.End(); err != nil {
		return invalid(err)
	}
	if dir = u.Path; dir == "" {
		dir, err = DefaultDir()
	} else if !filepath.IsAbs(dir) {
		return invalid(fmt.Errorf("the path %q is relative: give an absolute one, as in file:///var/lib/locks", dir))
	}
	return dir, o, err
}
