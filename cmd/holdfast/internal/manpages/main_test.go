package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPagesAreUpToDate requires that the repository contains the pages that the generator writes.
func TestPagesAreUpToDate(t *testing.T) {
	pages, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	again, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	const dir = "../../../../docs/man"
	const hint = "; in cmd/holdfast: go generate ."
	for name, text := range pages {
		if !bytes.Equal(text, again[name]) {
			t.Errorf("%s: differs from one time to the next", name)
		}
		there, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%v%s", err, hint)
		} else if !bytes.Equal(text, there) {
			t.Errorf("%s differs from the help%s", name, hint)
		}
	}
	there, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		if pages[filepath.Base(path)] == nil {
			t.Errorf("%s is the page of no command%s", path, hint)
		}
	}
	for _, want := range []string{"holdfast.1", "holdfast-run.1", "holdfast-ls.1", "holdfast-break.1"} {
		if pages[want] == nil {
			t.Errorf("no %s: %v", want, slices.Sorted(maps.Keys(pages)))
		}
	}
}

// TestExitStatusesAreAList requires that each exit status has a line of its own in the page, as in
// the help.
func TestExitStatusesAreAList(t *testing.T) {
	pages, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"  64   bad usage\n", "  75   not acquired: busy with --try"} {
		if page := strings.ReplaceAll(string(pages["holdfast-run.1"]), `\-`, "-"); !strings.Contains(page, "\n"+line[2:]) && !strings.Contains(page, "\n"+line) {
			t.Errorf("no line %q:\n%s", line, page)
		}
	}
}

// TestWriteReplacesOldPages requires that write removes the page of a command that does not exist
// any more.
func TestWriteReplacesOldPages(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "holdfast-gone.1")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the page of a removed command still exists")
	}
	if _, err := os.Stat(filepath.Join(dir, "holdfast.1")); err != nil {
		t.Error(err)
	}
}
