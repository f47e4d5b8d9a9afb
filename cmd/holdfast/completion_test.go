//go:build linux || darwin

package main_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// The scheme "hanging" exists only in this test binary. Its store never answers, and ignores
// its context.
func init() {
	driver.Register("hanging", func(context.Context, *url.URL, string) (driver.Store, error) { select {} })
}

// completions returns the words that a shell would offer to complete args.
func (w *sandbox) completions(args ...string) []string {
	w.t.Helper()
	r := w.run(append([]string{"__complete"}, args...)...)
	r.expectStatus(w.t, 0)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, ":") {
		w.t.Errorf("%q: no directive:\n%s", args, r.stdout)
	}
	return lines[:len(lines)-1]
}

// hostileNames are names that a terminal, a shell or the command itself could take for something else.
var hostileNames = []string{
	"--store=file:///nowhere ", "-rf *", "--", "~root x", "*", "$(touch gone)", "`touch gone`", ";touch gone", "a|b", "a b", " a", "a ", "'a'", `"a"`, `a\`,
	"a\x1b[2J", "a\x1b]0;title\a", "a\rb", "a\nb", "a\tb", "\u009b2J", "\u202ebdo", "a\u200bb", "a\u2028b", "e" + strings.Repeat("\u0301", 30), "_activeHelp_ a", "{a,b}", "#a",
}

// TestCompleteOffersLockedNames requires that completion offers the locked names that are safe on
// a command line, and no others.
func TestCompleteOffersLockedNames(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	for _, name := range append([]string{"billing/1", "billing/2", "nightly", "billing/$(touch gone)", "billing/a b"}, hostileNames...) {
		mustLock(t, l, name)
	}
	for _, sub := range []string{"show", "break", "watch", "ls", "run", "hold"} {
		if got := w.completions(sub, "bil"); !slices.Equal(got, []string{"billing/1", "billing/2"}) {
			t.Errorf("%s: %q", sub, got)
		}
		if got := w.completions(sub, ""); !slices.Equal(got, []string{"billing/1", "billing/2", "nightly"}) {
			t.Errorf("%s, no prefix: %q", sub, got)
		}
		if got := w.completions(sub, "nightly", ""); len(got) > 0 {
			t.Errorf("%s, a second name: %q", sub, got)
		}
	}
	if got := w.completions("show", "--namespace", "other", ""); len(got) > 0 {
		t.Errorf("another namespace: %q", got)
	}
	w.env = slices.DeleteFunc(w.env, func(v string) bool { return strings.HasPrefix(v, "HOLDFAST_STORE=") })
	if got := w.completions("show", "--store", w.storeURL(), "n"); !slices.Equal(got, []string{"nightly"}) {
		t.Errorf("with --store: %q", got)
	}
	// After an error completion offers no name, prints nothing and makes no file.
	for _, args := range [][]string{{"show", ""}, {"show", "--store", "floppy://x", ""}, {"show", "--store-file", "none", ""}} {
		r := w.run(append([]string{"__complete"}, args...)...)
		if r.status != 0 || !strings.HasPrefix(r.stdout, ":4") || strings.Contains(r.stderr, "holdfast:") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if made, _ := os.ReadDir(w.home); len(made) > 0 {
		t.Errorf("something was made: %v", made)
	}
}

// TestCompletionOfHangingStoreEnds requires that completion ends although the store does not answer.
func TestCompletionOfHangingStoreEnds(t *testing.T) {
	w := newSandbox(t)
	r := w.runScripted(nil, "__complete", "show", "--store", "hanging://x", "")
	if r.status != 0 || !strings.HasPrefix(r.stdout, ":4") {
		t.Errorf("%+v", r)
	}
}

// TestShellsReadCompletionScripts requires that each shell reads its script without an error, and that bash offers no
// name that it would read as something else.
func TestShellsReadCompletionScripts(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	for _, name := range append([]string{"nightly"}, hostileNames...) {
		mustLock(t, l, name)
	}
	for _, sh := range []string{"bash", "zsh", "fish"} {
		t.Run(sh, func(t *testing.T) {
			r := w.run("completion", sh).expectStatus(t, 0)
			if !strings.Contains(r.stdout, "holdfast") || r.stderr != "" {
				t.Errorf("%+v", r)
			}
			path, err := exec.LookPath(sh)
			if err != nil {
				t.Skipf("%s is not installed: its script is not run", sh)
			}
			if out, err := exec.Command(path, "-n", w.file("script", r.stdout)).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if sh != "bash" {
				return
			}
			// The test imitates the Tab key, and defines the functions of bash-completion that
			// the script calls.
			c := exec.Command(path, "-c", `
				_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; }
				__ltrim_colon_completions() { :; }
				compopt() { :; }
				holdfast() { "$binary" "$@"; }
				. "$1"
				COMP_WORDS=(holdfast show "") COMP_CWORD=2 COMP_LINE="holdfast show " COMP_POINT=14 COMP_TYPE=9
				__start_holdfast
				echo "offers ${COMPREPLY[*]}."`, "bash", w.path("script"))
			c.Env = append(slices.Clone(w.env), "binary="+binary)
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "offers nightly.") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// file writes a file, executable if it is a script, and returns its path.
func (w *sandbox) file(name, text string) string {
	w.t.Helper()
	mode := os.FileMode(0o600)
	if strings.HasPrefix(text, "#!") {
		mode = 0o700
	}
	must(w.t, os.WriteFile(w.path(name), []byte(text), mode))
	return w.path(name)
}
