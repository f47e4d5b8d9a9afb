//go:build linux || darwin

// Package checktest runs the check inside go test.
//
//	func TestMain(m *testing.M) {
//		check.MaybeWorker() // this test binary is its own worker
//		os.Exit(m.Run())
//	}
//
//	func TestTorture(t *testing.T) {
//		checktest.Run(t, check.Config{URL: "redis://..."})
//	}
package checktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/check"
)

// Run runs a check of a store. If the store breaks a rule, Run fails the test with the
// excerpt of the history that shows why. It writes the summary to the test's output.
//
// Without a Dir the history and its page go to t.ArtifactDir, which `go test -artifacts`
// keeps. If a rule was broken, Run always keeps them, and the failure names the directory.
func Run(t *testing.T, c check.Config) *check.Report {
	t.Helper()
	ours := c.Dir == ""
	if ours {
		c.Dir = t.ArtifactDir()
	}
	r, err := check.Run(t.Context(), c)
	if r != nil && !r.OK() && ours {
		r.Dir = keep(t, r.Dir)
	}
	if r != nil {
		var b strings.Builder
		_ = r.Summary(&b) // a buffer accepts every write
		t.Log("\n" + b.String())
	}
	if r != nil && !r.OK() {
		var b strings.Builder
		_ = r.Explain(&b)
		t.Errorf("a rule was broken; %s and %s are in %s%s", check.HistoryFile, check.PageFile, r.Dir, b.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keep copies a run's files to a directory that outlives the test, and returns it.
func keep(t *testing.T, from string) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == filepath.Separator || r == '*' {
			return '-'
		}
		return r
	}, t.Name())
	to, err := os.MkdirTemp("", fmt.Sprintf("holdfast-check-%.60s-", name))
	for _, file := range []string{check.HistoryFile, check.PageFile} {
		var text []byte
		if err == nil {
			text, err = os.ReadFile(filepath.Join(from, file))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, file), text, 0o600)
		}
	}
	if err != nil {
		t.Errorf("the history of a broken rule cannot be kept: %v", err)
		return from
	}
	return to
}
