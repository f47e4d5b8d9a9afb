package filestore_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

// mounted mounts a file system, and returns its directory. It skips the test without the right to do so.
func mounted(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	return dir
}

// TestExamineFindsBadFileSystems: no check finds anything at a good file system. One that is nearly full, has few
// inodes or does not flush its disk is found.
func TestExamineFindsBadFileSystems(t *testing.T) {
	examine := func(t *testing.T, dir string, o ...filestore.Option) (names []string) {
		t.Helper()
		s, err := filestore.Open(t.Context(), dir, o...)
		must.Succeed(t, err)
		defer s.Close(t.Context())
		found, err := s.Examine(t.Context())
		must.Succeed(t, err)
		for _, f := range found {
			if !slices.Contains(s.Checks(), f.Check) || f.Evidence == "" || f.Weight == driver.WeightBreaks && f.Name != "barrier" {
				t.Errorf("%+v", f)
			}
			names = append(names, f.Name)
		}
		return names
	}
	expect := func(t *testing.T, found []string, want ...string) {
		t.Helper()
		if !slices.Equal(found, want) {
			t.Errorf("found %q, want %q", found, want)
		}
	}
	t.Run("good", func(t *testing.T) { expect(t, examine(t, filepath.Join(t.TempDir(), "locks"))) })
	t.Run("little space", func(t *testing.T) {
		expect(t, examine(t, mounted(t, "-t", "tmpfs", "-o", "size=2m", "tmpfs")), "space")
	})
	t.Run("few inodes", func(t *testing.T) {
		expect(t, examine(t, mounted(t, "-t", "tmpfs", "-o", "size=64m,nr_inodes=500", "tmpfs")), "inodes")
	})
	t.Run("no barrier", func(t *testing.T) {
		image := filepath.Join(t.TempDir(), "image")
		must.Succeed(t, os.WriteFile(image, nil, 0o600))
		must.Succeed(t, os.Truncate(image, 64<<20))
		if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
			t.Skipf("mkfs.ext4: %v: %s", err, out)
		}
		expect(t, examine(t, filepath.Join(mounted(t, "-o", "loop,barrier=0", image), "locks")), "barrier")
	})
}
