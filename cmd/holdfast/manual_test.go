//go:build linux || darwin

package main_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

//go:generate go test -run TestManualIsCurrent . -update

var update = flag.Bool("update", false, "write the manual pages in docs/man, and the table of docs/command.md")

// TestManualIsCurrent requires that docs/man has the pages that the generator writes, and no others.
func TestManualIsCurrent(t *testing.T) {
	const manual = "../../docs/man"
	if *update {
		must(t, os.RemoveAll(manual))
		writeManual(t, manual)
	}
	fresh := t.TempDir()
	writeManual(t, fresh)
	want, got := readDir(t, fresh), readDir(t, manual)
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s differs from the help; in cmd/holdfast: go generate .", name)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is the page of no command; in cmd/holdfast: go generate .", name)
		}
	}
	// Each exit status has a line of its own, as in the help.
	run := strings.ReplaceAll(got["holdfast-run.1"], `\-`, "-")
	for _, line := range []string{"64   bad usage\n", "75   not acquired: busy with --try"} {
		if !strings.Contains(run, "\n"+line) {
			t.Errorf("no line %q:\n%s", line, run)
		}
	}
}

// writeManual writes the page of each command into a directory.
func writeManual(t *testing.T, dir string) {
	t.Helper()
	root := cli.Command()
	root.DisableAutoGenTag = true // the tag contains a date
	forMarkdown(root)
	// A date would make each day's pages differ. The generator cannot omit it, so this value
	// is removed below.
	header := &doc.GenManHeader{Section: "1", Source: "holdfast", Manual: "holdfast", Date: &time.Time{}}
	must(t, os.MkdirAll(dir, 0o755))
	must(t, doc.GenManTree(root, header, dir))
	for name, page := range readDir(t, dir) {
		page = strings.Replace(page, `"Jan 0001"`, `""`, 1)
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(page), 0o644))
	}
}

// readDir returns the files of a directory by their names.
func readDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	files := map[string]string{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		must(t, err)
		files[filepath.Base(path)] = string(b)
	}
	return files
}

// forMarkdown indents the indented lines of the help further, so that Markdown treats them as code.
// The generator reads the help as Markdown. It would otherwise join these lines to one paragraph.
func forMarkdown(cmd *cobra.Command) {
	for _, help := range []*string{&cmd.Long, &cmd.Example} {
		var out []string
		inside := false
		for line := range strings.SplitSeq(*help, "\n") {
			indented := strings.HasPrefix(line, "  ")
			if indented != inside && line != "" {
				out = append(out, "")
			}
			if line != "" {
				inside = indented
			}
			if indented {
				line = "  " + line
			}
			out = append(out, line)
		}
		*help = strings.Join(out, "\n")
	}
	for _, c := range cmd.Commands() {
		forMarkdown(c)
	}
}
