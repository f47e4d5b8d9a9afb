//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestUnusableDirectoriesAreRefused(t *testing.T) {
	tmp := tempDir(t)
	file := filepath.Join(tmp, "file")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	newer := filepath.Join(tmp, "newer")
	must.Succeed(t, os.Mkdir(newer, 0o700))
	must.Succeed(t, os.WriteFile(filepath.Join(newer, "format"), []byte("holdfast filestore 2\n"), 0o600))
	type unusable struct {
		name, dir string
		code      driver.Code
		says      []string
		o         []filestore.Option
	}
	tests := []unusable{
		{"empty", "", driver.CodeInvalid, []string{"no directory given", "DefaultDir"}, nil},
		{"NUL", "/tmp/\x00", driver.CodeInvalid, []string{"NUL"}, nil},
		{"file", file, driver.CodeRefused, []string{file, "is a file", "give a directory"}, nil},
		{"below a file", filepath.Join(file, "x"), driver.CodeRefused, []string{file, "is a file", "give a directory"}, nil},
		{"newer", newer, driver.CodeRefused, []string{newer, "holdfast filestore 2", "holdfast filestore 1"}, nil},
		{"mode", tmp, driver.CodeInvalid, []string{"mode 0750", "0700", "0770", "0777"}, []filestore.Option{filestore.Mode(0o750)}},
		{"mode with type", tmp, driver.CodeInvalid, []string{"mode"}, []filestore.Option{filestore.Mode(fs.ModeSetuid | 0o700)}},
		{"namespace", tmp, driver.CodeInvalid, []string{"namespace", "129", "128"}, []filestore.Option{filestore.Namespace(strings.Repeat("n", 129))}},
	}
	if runtime.GOOS == "linux" {
		tests = append(tests, unusable{"uncreatable", "/proc/none", driver.CodeRefused, []string{"/proc/none", "cannot be created"}, nil})
	}
	if os.Getuid() != 0 {
		locked := filepath.Join(tmp, "locked")
		must.Succeed(t, os.Mkdir(locked, 0o500))
		tests = append(tests, unusable{"unwritable", locked, driver.CodeRefused, []string{locked, "may write"}, nil})
	} else {
		foreign := filepath.Join(tmp, "foreign")
		must.Succeed(t, os.Mkdir(foreign, 0o700))
		must.Succeed(t, os.Chown(foreign, 4711, -1))
		tests = append(tests, unusable{"another user's", foreign, driver.CodeRefused, []string{foreign, "user 4711", "user 0", "0770"}, nil})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := filestore.Open(context.Background(), tt.dir, tt.o...)
			if err == nil {
				s.Close(context.Background())
				t.Fatal("opened")
			}
			if code := driver.CodeOf(err); code != tt.code {
				t.Errorf("code %v, want %v", code, tt.code)
			}
			for _, w := range append(tt.says, "filestore: ") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not contain %q", err, w)
				}
			}
		})
	}
}

func TestURLsNameDirectories(t *testing.T) {
	opener, ok := driver.OpenerOf("file")
	if !ok {
		t.Fatal("not registered")
	}
	dir := tempDir(t)
	t.Setenv("XDG_STATE_HOME", dir)
	t.Setenv("HOME", dir)
	def, err := filestore.DefaultDir()
	must.Succeed(t, err)
	for raw, want := range map[string]string{
		"file://" + dir + "/a%20b":       "file://" + dir + "/a%20b",
		"file://" + dir + "/c?mode=0770": "file://" + dir + "/c",
		"file:":                          (&url.URL{Scheme: "file", Path: def}).String(),
		"file:" + dir + "/d":             "file://" + dir + "/d",
		"file://" + dir + "/e/../f/./g?": "file://" + dir + "/f/g",
		"file://host/x":                  "!has no host",
		"file://user:secret@host/x":      "!has no host",
		"file:locks":                     "!relative",
		"file:///x?mod=0770":             "!unknown parameter \"mod\"",
		"file:///x?mode=9":               "!octal",
		"file:///x?mode=0750":            "!mode 0750",
		"file:///x?mode=0700&mode=0770":  "!more than once",
		"file:///x?%zz":                  "!cannot be read",
		"file:///x#y":                    "!%23",
	} {
		u, err := url.Parse(raw)
		must.Succeed(t, err)
		s, err := opener(context.Background(), u, "ns")
		if says, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", raw, err, says)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%v shows a password", err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if s.String() != want {
			t.Errorf("%s opens %s, want %s", raw, s, want)
		}
		s.Close(context.Background())
	}
}

func TestDefaultDirFollowsEnvironment(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Setenv("HOME", "/home/u")
		if d, err := filestore.DefaultDir(); err != nil || d != "/home/u/Library/Application Support/holdfast" {
			t.Errorf("%s, %v", d, err)
		}
		return
	}
	for _, tt := range []struct{ xdg, home, want string }{
		{"/state", "/home/u", "/state/holdfast"},
		{"state", "/home/u", "/home/u/.local/state/holdfast"},
		{"", "/home/u", "/home/u/.local/state/holdfast"},
		{"", "", ""},
		{"", "relative", ""},
	} {
		t.Setenv("XDG_STATE_HOME", tt.xdg)
		t.Setenv("HOME", tt.home)
		d, err := filestore.DefaultDir()
		if d != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%+v: %s, %v", tt, d, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "set HOME") || driver.CodeOf(err) != driver.CodeInvalid) {
			t.Errorf("%v", err)
		}
	}
}

// TestModeIsKept: new files have the requested mode whatever the umask is. A store without the option
// uses the mode of the directory.
func TestModeIsKept(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, mode := range []fs.FileMode{0o700, 0o770, 0o777} {
		dir := filepath.Join(tempDir(t), "new", "locks")
		s := open(t, dir, filestore.Mode(mode))
		take(t, s, "a", driver.Exclusive)
		again := open(t, dir)
		take(t, again, "b", driver.Exclusive)
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			want := mode
			if !d.IsDir() {
				want &^= 0o111
			}
			if info.Mode().Perm() != want {
				t.Errorf("%s is %v, want %v", path, info.Mode(), want)
			}
			if d.IsDir() && mode&0o070 != 0 && info.Mode()&fs.ModeSetgid == 0 {
				t.Errorf("%s: files in it would get their creator's group", path)
			}
			return nil
		})
		must.Succeed(t, err)
	}
	// A private directory is shared later.
	dir := tempDir(t)
	take(t, open(t, dir), "a", driver.Exclusive)
	s := open(t, dir, filestore.Mode(0o770))
	_, err := s.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, s, err, driver.CodeBusy)
	info, err := os.Stat(s.BucketPath("a"))
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestLongDirectoryIsRefused: the directory's path is longer than the path of a socket may be. Only
// systems that cannot shorten it refuse the directory.
func TestLongDirectoryIsRefused(t *testing.T) {
	dir := filepath.Join(tempDir(t), strings.Repeat("long", 50))
	if runtime.GOOS != "linux" {
		_, err := filestore.Open(context.Background(), dir)
		if err == nil || driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "give a shorter one") {
			t.Errorf("%v", err)
		}
		return
	}
	a, b := open(t, dir), open(t, dir)
	c := start(t, "hold", dir, "a")
	c.says("granted")
	p, q := silent(t, a, "a", driver.Exclusive), silent(t, b, "a", driver.Exclusive)
	c.kill()
	g := p.granted(t)
	if _, err := os.Lstat(a.SessionPath() + ".sock"); err != nil {
		t.Error(err)
	}
	release(t, a, g)
	q.granted(t)
	path := a.SessionPath() + ".sock"
	a.Close(testContext(t))
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", path, err)
	}
}

// TestFileSystemThatIsNotKnownToBeLocalIsRefused uses /proc: every Linux has this file system, and the
// store does not know it as local.
func TestFileSystemThatIsNotKnownToBeLocalIsRefused(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	const dir = "/proc/self/fd"
	_, err := filestore.Open(t.Context(), dir)
	if driver.CodeOf(err) != driver.CodeRefused {
		t.Fatalf("%v", err)
	}
	for _, s := range []string{dir, "its file system is proc", `AllowFileSystem("proc")`, "?filesystem=proc"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not contain %q: %v", s, err)
		}
	}
	opener, _ := driver.OpenerOf("file")
	u := &url.URL{Scheme: "file", Path: dir, RawQuery: "filesystem=proc"}
	_, viaURL := opener(t.Context(), u, "")
	_, viaOption := filestore.Open(t.Context(), dir, filestore.AllowFileSystem("nfs"), filestore.AllowFileSystem("proc"))
	for _, err := range []error{viaURL, viaOption} {
		// The option allows the file system. Open then returns another error.
		if driver.CodeOf(err) != driver.CodeRefused || strings.Contains(err.Error(), "file system") {
			t.Errorf("%v", err)
		}
	}
}
