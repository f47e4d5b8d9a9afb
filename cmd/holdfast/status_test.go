//go:build linux || darwin

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExitStatus checks the exit statuses that need no signal.
func TestExitStatus(t *testing.T) {
	w := withStore(t)
	write := func(name, text string, mode os.FileMode) string {
		path := w.path(name)
		must(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o600)
	bare := write("bare", "\x00no program", 0o700)
	lost := write("lost", "#!/no/such/interpreter\n", 0o700)
	write("bin-plain", "#!/bin/sh\n", 0o600)
	path := "PATH=" + os.Getenv("PATH") + ":" + w.dir

	for name, c := range map[string]struct {
		args    []string
		want    int
		message string
	}{
		"success":             {[]string{"run", "x", "--", "true"}, 0, ""},
		"the command's own":   {[]string{"run", "x", "--", "sh", "-c", "exit 3"}, 3, ""},
		"its highest":         {[]string{"run", "x", "--", "sh", "-c", "exit 255"}, 255, ""},
		"killed by TERM":      {[]string{"run", "x", "--", "sh", "-c", "kill -TERM $$"}, 143, ""},
		"killed by KILL":      {[]string{"run", "x", "--", "sh", "-c", "kill -KILL $$"}, 137, ""},
		"not found in PATH":   {[]string{"run", "x", "--", "no-such-command"}, 127, "no-such-command"},
		"no such file":        {[]string{"run", "x", "--", "./no-such-file"}, 127, "./no-such-file"},
		"no interpreter":      {[]string{"run", "x", "--", lost}, 127, lost},
		"not executable":      {[]string{"run", "x", "--", plain}, 126, plain},
		"none in PATH is":     {[]string{"run", "x", "--", "bin-plain"}, 126, "not executable"},
		"a directory":         {[]string{"run", "x", "--", w.dir}, 126, w.dir},
		"no format to run":    {[]string{"run", "x", "--", bare}, 126, "#!"},
		"store is a file":     {[]string{"run", "--store", "file://" + plain, "x", "--", "true"}, 78, "directory"},
		"probe of a file":     {[]string{"stores", "file://" + plain}, 78, "directory"},
		"probe of a store":    {[]string{"stores", w.storeURL()}, 0, ""},
		"once and shared":     {[]string{"run", "--once", "k", "--shared", "x", "--", "true"}, 64, "--once"},
		"once and limit":      {[]string{"run", "--once", "k", "--limit", "2", "x", "--", "true"}, 64, "--once"},
		"once without key":    {[]string{"run", "--once", "", "x", "--", "true"}, 64, "--once"},
		"shared":              {[]string{"run", "--shared", "x", "--", "true"}, 0, ""},
		"semaphore":           {[]string{"run", "--limit", "2", "x", "--", "true"}, 0, ""},
		"all durations":       {[]string{"run", "--ttl", "9s", "--grace", "3s", "--wait", "1h", "--min-hold", "1ms", "--max-hold", "1h", "x", "--", "true"}, 0, ""},
		"the command's flags": {[]string{"run", "x", "--", "sh", "-c", "exit $#", "--", "--try", "-v"}, 2, ""},
		"flags after NAME":    {[]string{"run", "x", "--try", "--", "true"}, 0, ""},
		"help":                {[]string{"help", "run"}, 0, ""},
		"help by flag":        {[]string{"run", "--help"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.runIn([]string{path}, "", c.args...)
			r.expectStatus(t, c.want)
			contains(t, r.stderr, c.message)
			if c.message == "" && r.stderr != "" {
				t.Errorf("stderr is not empty:\n%s", r.stderr)
			}
		})
	}
}

// TestExitStatusOfStoreErrors requires the right exit status for the errors of a store.
func TestExitStatusOfStoreErrors(t *testing.T) {
	for host, want := range map[string]int{"unavailable": 69, "refused": 78, "unsupported": 78, "no-such-host": 69} {
		t.Run(host, func(t *testing.T) {
			w := newSandbox(t)
			r := w.runScripted(nil, "run", "--store", "scripted://"+host, "--ttl", "600ms", "--grace", "200ms", "x", "--", "touch", "ran")
			r.expectStatus(t, want)
			if _, err := os.Stat(w.path("ran")); err == nil {
				t.Error("the command ran")
			}
			if !strings.HasPrefix(r.stderr, "holdfast: ") {
				t.Errorf("stderr: %q", r.stderr)
			}
		})
	}
}

// TestBusyEndsShortWaits: another run holds the lock. A run with --try or with a short --wait ends,
// and does not run its command.
func TestBusyEndsShortWaits(t *testing.T) {
	w := withStore(t)
	holder := w.hold("--reason", "the holder", "x")
	for name, c := range map[string]struct {
		flags   []string
		want    int
		message string
	}{
		"try":                {[]string{"--try"}, 75, "(the holder) for "},
		"try, own status":    {[]string{"--try", "--busy-status", "9"}, 9, "(the holder)"},
		"try, no failure":    {[]string{"--try", "--busy-status", "0"}, 0, ""},
		"verbose no failure": {[]string{"--try", "--busy-status", "0", "-v"}, 0, "(the holder)"},
		"wait":               {[]string{"--wait", "20ms"}, 75, "--wait"},
		"wait, own status":   {[]string{"--wait", "20ms", "--busy-status", "125"}, 125, "(the holder)"},
		"shared":             {[]string{"--try", "--shared"}, 75, "(the holder)"},
		"semaphore":          {[]string{"--try", "--limit", "7"}, 75, "(the holder)"},
		"not runnable first": {[]string{"--wait", "1h"}, 127, "no-such-command"},
		"another namespace":  {[]string{"--try", "--namespace", "other"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			command := "true"
			if c.want == 127 {
				command = "no-such-command" // found before the wait begins
			}
			r := w.run(append(append([]string{"run"}, c.flags...), "x", "--", command)...)
			r.expectStatus(t, c.want)
			if !strings.Contains(r.stderr, c.message) || c.message == "" && r.stderr != "" {
				t.Errorf("stderr: %q, want %q", r.stderr, c.message)
			}
		})
	}
	holder.send("exit 4")
	holder.expectStatus(4)
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 0)
}

// TestContainerLayerIsNamed: the directory is on an overlay, as in a container without a mounted directory. Processes of
// other containers have a copy.
func TestContainerLayerIsNamed(t *testing.T) {
	w := newSandbox(t)
	dir := t.TempDir()
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	mount := exec.Command("mount", "-t", "overlay", "overlay", "-o", "lowerdir=lower,upperdir=upper,workdir=work", merged)
	mount.Dir = dir
	if out, err := mount.CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s: this needs the right to mount an overlay", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", merged).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	url := "file://" + merged
	if r := w.run("run", "--store", url, "x", "--", "true").expectStatus(t, 0); strings.Count(r.stderr, "warning: the locks are in a layer of this container") != 1 {
		t.Errorf("stderr of run: %q", r.stderr)
	}
	if r := w.run("ls", "--store", url).expectStatus(t, 0); !strings.Contains(r.stderr, "warning: the locks are in a layer of this container") {
		t.Errorf("stderr of ls: %q", r.stderr)
	}
	if r := w.run("stores", url).expectStatus(t, 0); !strings.Contains(r.stdout, "this container") {
		t.Errorf("stores: %q", r.stdout)
	}
	if r := w.run("run", "--store", "file://"+filepath.Join(dir, "locks"), "x", "--", "true").expectStatus(t, 0); r.stderr != "" {
		t.Errorf("stderr of run on a plain directory: %q", r.stderr)
	}
}

// TestDefaultStoreIsNamed: if the user gives no store, run prints the default one.
func TestDefaultStoreIsNamed(t *testing.T) {
	w := newSandbox(t)
	r := w.run("run", "x", "--", "true").expectStatus(t, 0)
	dir := filepath.Join(w.home, ".local/state/holdfast")
	if want := "holdfast: locks in " + dir + ", this machine and user only; set HOLDFAST_STORE\n"; r.stderr != want {
		t.Errorf("stderr %q, want %q", r.stderr, want)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}

	w.env = []string{"PATH=" + os.Getenv("PATH")}
	r = w.run("run", "x", "--", "true").expectStatus(t, 64)
	contains(t, r.stderr, "HOLDFAST_STORE", "HOME")
}
