//go:build linux

package sqlite

import (
	"os/exec"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/sqlitestore"
)

// TestExamineFindsLittleSpace: no check finds anything in a good directory. A file system that is nearly full is found.
func TestExamineFindsLittleSpace(t *testing.T) {
	examine := func(dir string, want ...string) {
		t.Helper()
		s, err := sqlitestore.Open(dir+"/locks.db", "")
		must.Succeed(t, err)
		defer s.Close(t.Context())
		requests.Found(t, s, want...)
	}
	examine(t.TempDir())
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	examine(dir, "space")
}
