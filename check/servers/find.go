//go:build linux || darwin

package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Dirs is the environment variable that lists directories with server programs,
// which come before PATH.
const Dirs = "HOLDFAST_SERVERS"

// ErrNotInstalled: a server's program is not on this machine.
var ErrNotInstalled = errors.New("not installed")

// Find finds a server's program: in the directories of the environment variable
// HOLDFAST_SERVERS; in its own places, which are patterns of whole paths and come before
// PATH, since that may have a wrapper; and in PATH. The error wraps ErrNotInstalled.
func Find(program string, own ...string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv(Dirs)) {
		if path := filepath.Join(dir, program); executable(path) {
			return path, nil
		}
	}
	for _, pattern := range own {
		found, _ := filepath.Glob(pattern)
		// The last is the newest where the pattern has a version in it.
		for i := len(found) - 1; i >= 0; i-- {
			if executable(found[i]) {
				return found[i], nil
			}
		}
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("servers: %s is %w: it was looked for in %s, %v and PATH", program, ErrNotInstalled, Dirs, own)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}
