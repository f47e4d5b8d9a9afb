//go:build linux || darwin

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckOfLocalStoresHolds checks both local stores for a short time, and one store by its URL.
// The check writes its history and its page to the directory of --dir.
func TestCheckOfLocalStoresHolds(t *testing.T) {
	for _, local := range []string{"file", "memory"} {
		t.Run(local, func(t *testing.T) {
			w := newSandbox(t)
			dir := w.path("report")
			r := w.run("check", "--local", local, "--duration", "2s", "--seed", "7", "--dir", dir).expectStatus(t, 0)
			for _, rule := range []string{"exclusion", "validity", "tokens", "register", "order", "waiting", "leftovers"} {
				if !strings.Contains(r.stdout, rule) || strings.Contains(r.stdout, "broken") {
					t.Errorf("%s is not judged to hold:\n%s", rule, r.stdout)
				}
			}
			pages, _ := filepath.Glob(filepath.Join(dir, "*.html"))
			histories, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			if len(pages) == 0 || len(histories) == 0 {
				left, _ := os.ReadDir(dir)
				t.Errorf("no page or no history: %v", left)
			}
		})
	}
	w := withStore(t)
	// A client that locks the same names in another namespace does not disturb the check.
	lock := mustLock(t, w.locker(), "name-0")
	w.run("check", "--duration", "1s", "--names", "1", "--namespace", "check").expectStatus(t, 0)
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}
