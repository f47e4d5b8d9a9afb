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
	steps := regexp.MustCompile("(?ms)^```sh\n(go mod .*?)^```$").FindAllStringSubmatch(library, -1)
	if program == nil || len(steps) != 2 {
		t.Fatal("README.md has no program, or does not say how to run it, and how to add a store")
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
	run := func(source, commands string) string {
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", commands, err)
		}
		return string(out)
	}
	if out := run(source, steps[0][1]); !strings.Contains(out, "billing with token ") {
		t.Errorf("the program: %s", out)
	}
	redis := strings.NewReplacer("holdfast/filestore", "holdfast/redisstore", locks, `"redis://localhost:6379"`).Replace(source)
	if out := run(redis, steps[1][1]+"go build -o billing ."); t.Failed() {
		t.Errorf("with the store of Redis: %s", out)
	}
}
