//go:build linux || darwin

package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Dirs is the environment variable that lists directories of server programs. Find searches
// them before PATH.
const Dirs = "HOLDFAST_SERVERS"

// ErrNotInstalled is the error for a server whose program is missing.
var ErrNotInstalled = errors.New("not installed")

// Find returns the path of a server's program. It searches the directories of HOLDFAST_SERVERS,
// then own, which are patterns of whole paths, then PATH. PATH is last because it may contain a
// wrapper of the program. The error wraps ErrNotInstalled.
func Find(program string, own ...string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv(Dirs)) {
		if path := filepath.Join(dir, program); executable(path) {
			return path, nil
		}
	}
	for _, pattern := range own {
		found, _ := filepath.Glob(pattern)
		// If the pattern contains a version, the last path has the newest.
		for i := len(found) - 1; i >= 0; i-- {
			if executable(found[i]) {
				return found[i], nil
			}
		}
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("servers: %s is %w: searched %s, %v and PATH", program, ErrNotInstalled, Dirs, own)
}

// find is Find for a program of a package of Debian. Its error names the package.
func find(program, debian string, own ...string) (string, error) {
	path, err := Find(program, own...)
	if err != nil {
		err = fmt.Errorf("%w (Debian: apt-get install %s)", err, debian)
	}
	return path, err
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}
