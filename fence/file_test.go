//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/must"
)

var _ fence.Guard[[]byte] = (*fence.Files)(nil)

// oneFile is a guard with one of its resources.
type oneFile struct {
	files *fence.Files
	name  string
}

func guardOf(path string) (oneFile, error) {
	files, err := fence.NewFiles(filepath.Dir(path))
	return oneFile{files, filepath.Base(path)}, err
}

func (f oneFile) Write(ctx context.Context, token uint64, data []byte) error {
	return f.files.Write(ctx, f.name, token, data)
}

func (f oneFile) WriteFunc(ctx context.Context, token uint64, write func(io.Writer) error) error {
	return f.files.WriteFunc(ctx, f.name, token, write)
}

func (f oneFile) Raise(ctx context.Context, token uint64) error {
	return f.files.Raise(ctx, f.name, token)
}

func (f oneFile) Newest(ctx context.Context) (uint64, error) { return f.files.Newest(ctx, f.name) }

func newFile(t *testing.T) (oneFile, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	f, err := guardOf(path)
	must.Succeed(t, err)
	return f, path
}

// TestFilesMakeOneFileAndItsRecord: Newest makes nothing, Raise makes the record, and Write the file, which may be empty.
func TestFilesMakeOneFileAndItsRecord(t *testing.T) {
	f, path := newFile(t)
	for _, step := range []struct {
		do    func() error
		token uint64
		made  []string
	}{
		{func() error { return nil }, 0, nil},
		{func() error { return f.Raise(t.Context(), 7) }, 7, []string{"state.fence"}},
		{func() error { return f.Write(t.Context(), 7, []byte("one")) }, 7, []string{"state", "state.fence"}},
		{func() error { return f.Write(t.Context(), 8, nil) }, 8, []string{"state", "state.fence"}},
	} {
		must.Succeed(t, step.do())
		if n, err := f.Newest(t.Context()); n != step.token || err != nil {
			t.Errorf("newest %d, %v; want %d", n, err, step.token)
		}
		if made := names(t, path); !slices.Equal(made, step.made) {
			t.Errorf("after token %d: %v, want %v", step.token, made, step.made)
		}
	}
	if got := read(t, path); got != "" {
		t.Errorf("content %q, want none", got)
	}
}

func TestFilesFailedWriteKeepsContent(t *testing.T) {
	f, path := newFile(t)
	must.Succeed(t, f.Write(t.Context(), 5, []byte("good")))
	half := func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return errWrite }
	if err := f.WriteFunc(t.Context(), 6, half); err != errWrite {
		t.Errorf("got %v, want the write's own error", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = f.WriteFunc(t.Context(), 6, func(io.Writer) error { panic("boom") })
	}()
	ctx, cancel := context.WithCancel(t.Context())
	err := f.WriteFunc(ctx, 6, func(w io.Writer) error { cancel(); return nil })
	if !errors.Is(err, fence.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("the context ended during the write: %v", err)
	}
	if got := read(t, path); got != "good" {
		t.Errorf("content %q", got)
	}
	if n, _ := f.Newest(t.Context()); n != 5 {
		t.Errorf("newest is %d", n)
	}
	if left := names(t, path); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFilesWaitEndsWithContext: a writer that waits for another process ends with its context.
func TestFilesWaitEndsWithContext(t *testing.T) {
	f, path := newFile(t)
	must.Succeed(t, f.Raise(t.Context(), 1))
	other, err := os.Open(path + ".fence")
	must.Succeed(t, err)
	defer other.Close()
	must.Succeed(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := f.Write(ctx, 2, nil); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, fence.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if left := names(t, path); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFilesWaiterUsesReplacedRecord: the record is replaced while a writer waits. The writer
// uses the new record, because the old record's lock no longer excludes other writers.
func TestFilesWaiterUsesReplacedRecord(t *testing.T) {
	f, path := newFile(t)
	must.Succeed(t, f.Raise(t.Context(), 1))
	g, other := newFile(t)
	must.Succeed(t, g.Raise(t.Context(), 9))
	held, err := os.Open(path + ".fence")
	must.Succeed(t, err)
	defer held.Close()
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	done, wrote := make(chan error, 1), make(chan struct{})
	go func() {
		done <- f.WriteFunc(t.Context(), 5, func(io.Writer) error { close(wrote); return nil })
	}()
	<-wrote
	time.Sleep(50 * time.Millisecond) // the writer probably waits by then; the test passes in any case
	must.Succeed(t, os.Rename(other+".fence", path+".fence"))
	must.Succeed(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	wantStale(t, <-done, 5, 9)
}

// TestFilesRefuseFileSystemsNotKnownToBeLocal uses /proc: every Linux has this file system, and it is not in
// the list of local ones.
func TestFilesRefuseFileSystemsNotKnownToBeLocal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	open := func(o ...fence.FilesOption) *fence.Files {
		f, err := fence.NewFiles("/proc/self", o...)
		must.Succeed(t, err)
		return f
	}
	err := open(fence.AllowFileSystem("nfs")).Write(t.Context(), "state", 1, nil)
	if !errors.Is(err, fence.ErrUnsupported) || !strings.Contains(err.Error(), `AllowFileSystem("proc")`) {
		t.Errorf("%v; want ErrUnsupported with the option that allows it", err)
	}
	if err := open(fence.AllowFileSystem("proc")).Write(t.Context(), "state", 1, nil); !errors.Is(err, fence.ErrUnavailable) {
		t.Errorf("allowed: %v; want ErrUnavailable, since /proc has no new files", err)
	}
}

func TestFilesRefuseBadNames(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	link, dangling := filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	for name, to := range map[string]string{link: path, dangling: filepath.Join(dir, "nothing")} {
		must.Succeed(t, os.Symlink(to, name))
	}
	must.Succeed(t, os.WriteFile(path, []byte("old"), 0o600))
	f, err := guardOf(link)
	must.Succeed(t, err)
	must.Succeed(t, f.Write(t.Context(), 5, []byte("new")))
	g, err := guardOf(path)
	must.Succeed(t, err)
	wantStale(t, g.Write(t.Context(), 4, nil), 4, 5)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the replacement's mode: %v, %v", info.Mode(), err)
	}
	files := f.files
	for what, test := range map[string]struct {
		resource string
		err      error
	}{
		"empty":          {"", fence.ErrInvalid},
		"dangling link":  {"dangling", fence.ErrInvalid},
		"directory":      {"sub", fence.ErrInvalid},
		"itself":         {".", fence.ErrInvalid},
		"above":          {"../state", fence.ErrInvalid},
		"absolute":       {path, fence.ErrInvalid},
		"a token record": {"state.fence", fence.ErrInvalid},
		"no directory":   {"no/such", fence.ErrUnavailable},
	} {
		must.Succeed(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
		_, newest := files.Newest(t.Context(), test.resource)
		for how, err := range map[string]error{
			"Write": files.Write(t.Context(), test.resource, 9, nil), "Raise": files.Raise(t.Context(), test.resource, 9), "Newest": newest,
		} {
			if !errors.Is(err, test.err) {
				t.Errorf("%s: %s: got %v, want %v", what, how, err, test.err)
			}
		}
	}
	for what, dir := range map[string]string{"empty": "", "a file": path} {
		if _, err := fence.NewFiles(dir); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", what, err)
		}
	}
	if _, err := fence.NewFiles(filepath.Join(dir, "no", "such")); !errors.Is(err, fence.ErrUnavailable) {
		t.Errorf("no directory: got %v, want ErrUnavailable", err)
	}
	if err := files.Write(t.Context(), "sub/state", 1, []byte("below")); err != nil || read(t, filepath.Join(dir, "sub", "state")) != "below" {
		t.Errorf("a file of a subdirectory: %v", err)
	}
}

// TestFilesRefuseCorruptRecord: a record that cannot be read stops all writers; one damaged
// copy does not.
func TestFilesRefuseCorruptRecord(t *testing.T) {
	f, path := newFile(t)
	must.Succeed(t, f.Write(t.Context(), 5, []byte("good")))
	whole := read(t, path+".fence")
	for what, test := range map[string]struct {
		record string
		err    error
	}{
		"first copy torn":  {"holdfast-fence 1 000000000" + strings.Repeat("\x00", 20) + whole[46:], nil},
		"second copy gone": {whole[:46], nil},
		"empty":            {"", fence.ErrCorrupt},
		"both spoiled":     {strings.ReplaceAll(whole, "5", "6"), fence.ErrCorrupt},
	} {
		must.Succeed(t, os.WriteFile(path+".fence", []byte(test.record), 0o600))
		err := f.Write(t.Context(), 4, []byte("bad"))
		if test.err == nil {
			wantStale(t, err, 4, 5)
			// A write repairs the record even if the intact copy has its token already.
			if err := f.Write(t.Context(), 5, []byte("good")); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if got := read(t, path+".fence"); got != whole {
				t.Errorf("%s: the record was not repaired: %q", what, got)
			}
		} else if !errors.Is(err, test.err) {
			t.Errorf("%s: got %v, want %v", what, err, test.err)
		}
		if got := read(t, path); got != "good" {
			t.Errorf("%s: content %q", what, got)
		}
	}
}

// TestFilesContentNeverGoesBack: many writers have guards of their own, as separate processes
// have. Readers never see the content of an older token after that of a newer one.
func TestFilesContentNeverGoesBack(t *testing.T) {
	_, path := newFile(t)
	stop, watched := make(chan struct{}), make(chan error, 1)
	go func() { watched <- watch(path, stop) }()
	var wg sync.WaitGroup
	for writer := range 8 {
		wg.Go(func() {
			f, err := guardOf(path)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 12 {
				token := uint64(1 + i*8 + (writer*5)%8)
				err := f.Write(t.Context(), token, content(token, i))
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Errorf("token %d: %v", token, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	must.Report(t, <-watched)
	if left := names(t, path); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFilesStayInTheirDirectory: links lead to files outside the directory, and a record is a link to the
// record of another file. The guard changes nothing there.
func TestFilesStayInTheirDirectory(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	other := filepath.Join(outside, "other")
	guard, err := guardOf(other)
	must.Succeed(t, err)
	must.Succeed(t, guard.Write(t.Context(), 5, []byte("old")))
	for name, to := range map[string]string{
		"file": other, "sub": outside, "record": other + ".fence", "state.fence": other + ".fence", "own": filepath.Join(dir, "x.fence"),
	} {
		must.Succeed(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "x.fence"), nil, 0o600))
	files, err := fence.NewFiles(dir)
	must.Succeed(t, err)
	for resource, want := range map[string]error{
		"file": fence.ErrInvalid, "sub/other": fence.ErrInvalid, "sub/new": fence.ErrInvalid,
		"record": fence.ErrInvalid, "own": fence.ErrInvalid, "state": fence.ErrUnavailable,
	} {
		if err := files.Write(t.Context(), resource, 9, []byte("new")); !errors.Is(err, want) {
			t.Errorf("Write of %s: %v, want %v", resource, err, want)
		}
		if err := files.Raise(t.Context(), resource, 9); !errors.Is(err, want) {
			t.Errorf("Raise of %s: %v, want %v", resource, err, want)
		}
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "old" {
		t.Errorf("the file outside is %q, %v", got, err)
	}
	if newest, err := guard.files.Newest(t.Context(), "other"); err != nil || newest != 5 {
		t.Errorf("the newest token outside is %d, %v", newest, err)
	}
}

// TestFilesAcceptFileMadeMeanwhile: another writer creates a file between two checks of its
// path. The guard must not report a broken link.
func TestFilesAcceptFileMadeMeanwhile(t *testing.T) {
	f, path := newFile(t)
	stop, made := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(made)
		for {
			select {
			case <-stop:
				return
			default:
			}
			must.Report(t, os.WriteFile(path, nil, 0o600))
			must.Report(t, os.Remove(path))
		}
	}()
	for range 5000 {
		if _, err := f.Newest(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-made
}

// content returns the content of the holder of token: many lines, each with the token.
func content(token uint64, seq int) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("%d %d\n", token, seq), 3000))
}

// written returns the token of the content, and an error unless it is complete.
func written(data []byte) (token uint64, err error) {
	var seq int
	if _, err := fmt.Sscanf(string(data), "%d %d\n", &token, &seq); err != nil {
		return 0, fmt.Errorf("content %.40q: %w", data, err)
	}
	if string(data) != string(content(token, seq)) {
		return 0, fmt.Errorf("content of token %d is mixed or torn", token)
	}
	return token, nil
}

// watch reads the file until stop is closed.
func watch(path string, stop <-chan struct{}) error {
	f, err := guardOf(path)
	if err != nil {
		return err
	}
	var last uint64
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		token, err := written(data)
		if err != nil {
			return err
		}
		if token < last {
			return fmt.Errorf("the content went back from token %d to %d", last, token)
		}
		last = token
		// watch read the content before the record, so the record can only be newer.
		newest, err := f.Newest(context.Background())
		if err != nil {
			return err
		}
		if newest < token {
			return fmt.Errorf("content of token %d, but the newest is %d", token, newest)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must.Succeed(t, err)
	return string(b)
}

// names lists the directory of path.
func names(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	must.Succeed(t, err)
	var s []string
	for _, e := range entries {
		s = append(s, e.Name())
	}
	return s
}
