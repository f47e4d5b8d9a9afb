// Package example tests the examples and the code in the documentation.
package example

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeProgramRuns runs the program of README.md in a module of its own, beside a
// clone.
func TestReadmeProgramRuns(t *testing.T) {
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(clone, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, library, _ := strings.Cut(string(text), "## As a library")
	program := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindStringSubmatch(library)
	steps := regexp.MustCompile("(?ms)^```sh\n(go mod .*?)^```$").FindStringSubmatch(library)
	if program == nil || steps == nil {
		t.Fatal("README.md has no program, or does not say how to run it")
	}
	dir := filepath.Join(t.TempDir(), "billing")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(clone, filepath.Join(dir, "../holdfast")); err != nil {
		t.Fatal(err)
	}
	locks := `"file://` + filepath.Join(dir, "locks") + `"`
	source := strings.Replace(program[1], `"file:"`, locks, 1)
	if !strings.Contains(source, locks) {
		t.Fatal("the program of README.md does not open file:")
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", steps[1])
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "billing with token ") {
		t.Errorf("%v:\n%s", err, out)
	}
}
