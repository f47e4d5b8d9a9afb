// Package mutation plants mistakes in the library's own source, for the tests that prove that the check
// finds them.
//
// A line that a mistake changes ends with a mark, a comment of the form
//
//	mutation: NAME
//
// in Go or in Lua. So the source can change around it, and a test quotes none of it.
package mutation

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Plants has a function for each mark. It gets the marked line, without indentation and mark, and
// returns the replacement.
type Plants map[string]func(line string) string

// Is replaces the marked line by another.
func Is(line string) func(string) string { return func(string) string { return line } }

// And adds a line after the marked one.
func And(line string) func(string) string {
	return func(old string) string { return old + "\n" + line }
}

// With changes a part of the marked line.
func With(old, new string) func(string) string {
	return func(line string) string {
		if !strings.Contains(line, old) {
			return "the marked line does not contain " + old
		}
		return strings.Replace(line, old, new, 1)
	}
}

var mark = regexp.MustCompile(`(?m)^(\s*)(.*?)\s*(?://|--) mutation: ([a-z0-9-]+)$`)

// Marks returns the names of all marks, and the files that they are in. It reads the packages
// under these paths, from the root of the repository.
func Marks(under ...string) (map[string]string, error) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/holdfast-go/holdfast").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root := strings.TrimSpace(string(out))
	found := map[string]string{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			rel = filepath.ToSlash(rel) + "/"
			if rel != "./" && !slices.ContainsFunc(under, func(u string) bool {
				return strings.HasPrefix(rel, u+"/") || strings.HasPrefix(u, rel)
			}) {
				return fs.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".lua" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range mark.FindAllSubmatch(text, -1) {
			name := string(m[3])
			if other, twice := found[name]; twice {
				return fmt.Errorf("mark %s is in %s and in %s", name, other, path)
			}
			found[name] = path
		}
		return nil
	})
	return found, err
}

// Build builds a command with the mistakes in place of the source, and returns its path in dir.
// marks are those of Marks.
func Build(dir, command string, marks map[string]string, plants Plants) (string, error) {
	return build(dir, []string{"build"}, command, marks, plants)
}

// BuildTest does the same with the tests of a package.
func BuildTest(dir, tested string, marks map[string]string, plants Plants) (string, error) {
	return build(dir, []string{"test", "-c"}, tested, marks, plants)
}

func build(dir string, how []string, what string, marks map[string]string, plants Plants) (string, error) {
	source := map[string]string{}
	for name, plant := range plants {
		path, ok := marks[name]
		if !ok {
			return "", fmt.Errorf("no line has the mark %s", name)
		}
		if _, read := source[path]; !read {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			source[path] = string(b)
		}
		source[path] = mark.ReplaceAllStringFunc(source[path], func(line string) string {
			m := mark.FindStringSubmatch(line)
			if m[3] != name {
				return line
			}
			return m[1] + plant(m[2])
		})
	}
	replace := map[string]string{}
	for path, text := range source {
		copied := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[path] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "mutated")
	if out, err := exec.Command("go", append(how, "-overlay", file, "-o", bin, what)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", how[0], err, out)
	}
	return bin, nil
}
