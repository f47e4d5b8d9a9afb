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
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/check"
)

// Run tortures a store and fails the test with the excerpt of its history that
// shows why. The summary goes to the test's output. Without a Dir the history
// and its page go to t.ArtifactDir, which `go test -artifacts` keeps.
func Run(t *testing.T, c check.Config) *check.Report {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.ArtifactDir()
	}
	r, err := check.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	_ = r.Summary(&b) // to memory
	t.Log("\n" + b.String())
	if !r.OK() {
		b.Reset()
		_ = r.Explain(&b)
		t.Errorf("a rule was broken; history and page are in %s%s", r.Dir, b.String())
	}
	return r
}
