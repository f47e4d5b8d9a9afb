//go:build linux || darwin

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/check/lab"
	"github.com/holdfast-go/holdfast/check/lab/story"
	"github.com/holdfast-go/holdfast/check/servers"
)

// TestLabConvictsMistake: lab lists the stories and the mistakes. It runs one mistake, and the lock
// without a mistake.
func TestLabConvictsMistake(t *testing.T) {
	w := newSandbox(t)
	r := w.run("lab")
	r.expectStatus(t, 0)
	for _, m := range lab.Mistakes() {
		if !strings.Contains(r.stdout, m.Name+" ") || !strings.Contains(r.stdout, m.Title) {
			t.Errorf("%s is not listed:\n%s", m.Name, r.stdout)
		}
	}
	for _, y := range story.Stories() {
		if !strings.Contains(r.stdout, y.Name+" ") || !strings.Contains(r.stdout, y.Title) {
			t.Errorf("%s is not listed:\n%s", y.Name, r.stdout)
		}
	}
	dir := w.path("lab")
	r = w.run("lab", "clock-token", lab.Control, "--dir", dir)
	r.expectStatus(t, 0)
	for _, want := range []string{"mistake found, seed", "\ntokens: ", "no mistake found, seed", "history and timeline: " + dir} {
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

// TestLabPlaysStory: lab plays a story that needs no server, and a story whose server is missing.
func TestLabPlaysStory(t *testing.T) {
	w := newSandbox(t)
	dir := w.path("drawings")
	r := w.finish(exec.Command(binary, "lab", "crossed-names", "--dir", dir), []string{"LC_ALL=C"}, "")
	r.expectStatus(t, 0)
	for _, want := range []string{"client A", "-- wrong: ", "\nx Each waits", "-- holdfast", "\n+ ", "Lesson: ", dir} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in\n%s", want, r.stdout)
		}
	}
	for _, name := range []string{"crossed-names.svg", "index.html"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	r = w.finish(exec.Command(binary, "lab", "setnx-forever"), []string{"PATH=", servers.Dirs + "="}, "")
	r.expectStatus(t, 69)
	if !strings.Contains(r.stderr, "apt-get install redis-server") {
		t.Errorf("%s", r.stderr)
	}
}
