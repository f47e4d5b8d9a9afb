// Package model checks the rules of package redlock with spin. See redlock.pml.
package model

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// check searches all states of the model. It finds the shortest counterexample first.
func check(t *testing.T, settings ...string) (output string) {
	t.Helper()
	for _, program := range []string{"spin", "cc"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	model, err := filepath.Abs("redlock.pml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("spin", append(append([]string{"-a"}, settings...), model)...)
	run("cc", "-O2", "-w", "-DSAFETY", "-DBFS", "-DCOLLAPSE", "-DMEMLIM=2000", "-o", "pan", "pan.c")
	return run("./pan", "-E")
}

// TestModelKeepsExclusionAndTokens requires that no two clients hold a name at once, that tokens rise, and that a
// kept name is not granted, over all orders of requests, answers, restarts and admissions.
func TestModelKeepsExclusionAndTokens(t *testing.T) {
	for _, settings := range [][]string{{"-DROUNDS=1", "-DRESTARTS=1"}} {
		out := check(t, settings...)
		if !strings.Contains(out, "errors: 0") || strings.Contains(out, "Search not completed") {
			t.Errorf("%v:\n%s", settings, out)
		}
	}
}

// TestModelFindsMistakes plants mistakes in the model, and requires that spin finds
// each of them.
func TestModelFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("a program is compiled and run for each mistake")
	}
	for mistake, broken := range map[string]string{
		"-DNOWAIT":    "holders==1",
		"-DNORESTORE": "token>last",
		"-DEARLY":     "token>last",
		"-DFEW":       "token>last",
		"-DNOCOPY":    "!(kept)",
		"-DKEEPLATE":  "!(kept)",
	} {
		out := check(t, "-DROUNDS=1", "-DRESTARTS=1", mistake)
		if !strings.Contains(out, "assertion violated") || !strings.Contains(out, broken) {
			t.Errorf("%s is not found:\n%s", mistake, out)
		}
	}
}
