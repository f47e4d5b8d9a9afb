//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandUsesLinkedStore: run and check use the store that is linked in. The guardian of run and the
// workers of check are processes of this program.
func TestCommandUsesLinkedStore(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "holdfast-sqlite")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for says, args := range map[string][]string{
		"token 1":                   {"run", "--store", "sqlite://" + dir + "/locks.db", "nightly", "--", "sh", "-c", `echo "token $HOLDFAST_TOKEN"`},
		"exclusion           holds": {"check", "--store", "sqlite://" + dir + "/check.db", "--duration", "4s"},
	} {
		out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), says) {
			t.Errorf("%s %s: %v, and does not say %q:\n%s", bin, strings.Join(args, " "), err, says, out)
		}
	}
}
