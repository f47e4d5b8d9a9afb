//go:build linux || darwin

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/check/lab"
)

// TestLabConvictsMistake lists the mistakes, runs one of them, and runs the lock without a
// mistake.
func TestLabConvictsMistake(t *testing.T) {
	w := newWorld(t)
	r := w.run("lab")
	r.expectStatus(t, 0)
	for _, m := range lab.Mistakes() {
		if !strings.Contains(r.stdout, m.Name+" ") || !strings.Contains(r.stdout, m.Title) {
			t.Errorf("%s is not listed:\n%s", m.Name, r.stdout)
		}
	}
	dir := w.path("lab")
	r = w.run("lab", "clock-token", lab.Control, "--dir", dir)
	r.expectStatus(t, 0)
	for _, want := range []string{"convicted, seed", "\ntokens: ", "acquitted, seed", "history and timeline: " + dir} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in\n%s", want, r.stdout)
		}
	}
	for _, name := range []string{"clock-token", lab.Control} {
		if _, err := os.Stat(filepath.Join(dir, name, "report.html")); err != nil {
			t.Error(err)
		}
	}
	r = w.run("lab", "no-such")
	r.expectStatus(t, 64)
	if !strings.Contains(r.stderr, `no mistake "no-such"`) || !strings.Contains(r.stderr, "clock-token") {
		t.Errorf("%s", r.stderr)
	}
	w.run("lab", "--all", "clock-token").expectStatus(t, 64)
}
