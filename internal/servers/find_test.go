//go:build linux || darwin

package servers_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestFindPrefersGivenDirectories requires the order of the directories. Those of
// HOLDFAST_SERVERS come first, then the program's own, newest first. PATH comes last,
// because it may have wrappers.
func TestFindPrefersGivenDirectories(t *testing.T) {
	root := t.TempDir()
	place := func(dir string, mode os.FileMode) string {
		path := filepath.Join(root, dir, "program")
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Succeed(t, os.WriteFile(path, nil, mode))
		return path
	}
	t.Setenv("PATH", filepath.Join(root, "path"))
	t.Setenv(servers.Dirs, filepath.Join(root, "empty")+string(os.PathListSeparator)+filepath.Join(root, "given"))
	own := filepath.Join(root, "own", "*", "program")
	want := func(path string) {
		t.Helper()
		if got, err := servers.Find("program", own); err != nil || got != path {
			t.Errorf("Find returned %q, %v; want %q", got, err, path)
		}
	}
	if _, err := servers.Find("program", own); !errors.Is(err, servers.ErrNotInstalled) {
		t.Errorf("without a program: %v, want ErrNotInstalled", err)
	}
	want(place("path/", 0o700))
	want(place("own/14/", 0o700))
	newer := place("own/15/", 0o700)
	place("own/16/", 0o600) // not executable
	want(newer)
	want(place("given/", 0o700))
}
