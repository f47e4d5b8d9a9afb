//go:build linux || darwin

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lab"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestLabConvictsMistake: lab lists the stories and the mistakes. It runs one mistake. The lock without a mistake,
// which a busy machine can convict, is left to the package lab, whose tests have the machine for themselves.
func TestLabConvictsMistake(t *testing.T) {
	w := newSandbox(t)
	r := w.run("lab").expectStatus(t, 0)
	for _, m := range lab.Mistakes() {
		if !strings.Contains(r.stdout, m.Name+" ") || !strings.Contains(r.stdout, m.Title) {
			t.Errorf("%s is not listed:\n%s", m.Name, r.stdout)
		}
		for _, y := range m.Stories {
			if !strings.Contains(r.stdout, "  "+y.Name+" ") {
				t.Errorf("%s is not listed:\n%s", y.Name, r.stdout)
			}
		}
	}
	dir := w.path("lab")
	r = w.run("lab", "clock-token", "--dir", dir).expectStatus(t, 0)
	contains(t, r.stdout, "mistake found, seed", "\ntokens: ", "history and timeline: "+dir)
	if _, err := os.Stat(filepath.Join(dir, "clock-token", "report.html")); err != nil {
		t.Error(err)
	}
}

// TestLabPlaysStory: lab plays a story that needs no server, and a story whose server is missing.
func TestLabPlaysStory(t *testing.T) {
	w := newSandbox(t)
	dir := w.path("drawings")
	r := w.finish(exec.Command(binary, "lab", "crossed-names", "--dir", dir), []string{"LC_ALL=C"}, "")
	r.expectStatus(t, 0)
	contains(t, r.stdout, "client A", "-- wrong: ", "\nx Each waits", "-- holdfast", "\n+ ", "Instead: ", dir)
	if _, err := os.Stat(filepath.Join(dir, "crossed-names.svg")); err != nil {
		t.Error(err)
	}
	r = w.finish(exec.Command(binary, "lab", "setnx-forever"), []string{"PATH=", servers.Dirs + "="}, "")
	r.expectStatus(t, 69)
	contains(t, r.stderr, "apt-get install redis-server")
}
