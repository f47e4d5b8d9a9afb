// Manpages writes the manual pages of holdfast into a directory. "go generate" in cmd/holdfast
// runs it for the pages of this repository.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manpages DIRECTORY")
		os.Exit(64)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

// write writes the pages into the directory, and removes other pages from it.
func write(dir string) error {
	pages, err := generate()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, ok := pages[filepath.Base(path)]; !ok {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the pages by their file names.
func generate() (map[string][]byte, error) {
	root := cli.Command()
	root.DisableAutoGenTag = true // the tag contains a date
	pages := map[string][]byte{}
	return pages, add(pages, root)
}

func add(pages map[string][]byte, cmd *cobra.Command) error {
	cmd.Long, cmd.Example = markdown(cmd.Long), markdown(cmd.Example)
	var b bytes.Buffer
	// A date would make each day's pages differ. The generator cannot omit it, so this value
	// is removed below.
	date := time.Time{}
	if err := doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Source: "holdfast", Manual: "holdfast", Date: &date}, &b); err != nil {
		return err
	}
	text := bytes.Replace(b.Bytes(), []byte(`"Jan 0001"`), []byte(`""`), 1)
	pages[strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = text
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			if err := add(pages, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// markdown indents the indented lines of the help further, so that Markdown treats them as code.
// The generator reads the help as Markdown. It would otherwise join these lines to one paragraph.
func markdown(help string) string {
	var out []string
	inside := false
	for _, line := range strings.Split(help, "\n") {
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
	return strings.Join(out, "\n")
}
