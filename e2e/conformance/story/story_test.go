package story

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-go/holdfast/check/lab"
	"github.com/holdfast-go/holdfast/check/lab/story"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/redisstore/redlock"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

var update = flag.Bool("update", false, "write docs/lab again")

// docs is the directory of the drawings.
const docs = "../../../docs/lab"

// TestStories plays every story on its server. The wrong lock fails, and holdfast does not.
// The drawings equal those in docs/lab.
func TestStories(t *testing.T) {
	all := story.Stories()
	results := make([]*story.Result, len(all))
	// Stories on a server that starts slowly run one after another on one server.
	groups := map[string][]int{}
	for i, y := range all {
		key := y.Server
		if strings.HasPrefix(key, "Redis") {
			key = y.Name
		}
		groups[key] = append(groups[key], i)
	}
	t.Run("play", func(t *testing.T) {
		for key, group := range groups {
			t.Run(key, func(t *testing.T) {
				t.Parallel()
				set, err := story.NewSet()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(set.Close)
				for _, i := range group {
					t.Run(all[i].Name, func(t *testing.T) { results[i] = play(t, set, all[i]) })
				}
			})
		}
	})
	if slices.Contains(results, nil) {
		return // -run excludes some stories, or some failed
	}
	if *update {
		if err := os.RemoveAll(docs); err != nil {
			t.Fatal(err)
		}
		if err := story.Write(docs, results); err != nil {
			t.Fatal(err)
		}
	}
	fresh := t.TempDir()
	if err := story.Write(fresh, results); err != nil {
		t.Fatal(err)
	}
	same(t, fresh, docs)
	same(t, docs, fresh)
	page(t, all)
}

// page compares the stories in docs/lab.md with the code.
func page(t *testing.T, all []story.Story) {
	const path = docs + ".md"
	const begin, end = "<!-- stories: printed by e2e/conformance/story -->\n", "<!-- end of stories -->\n"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the comments that enclose the stories", path)
	}
	var text strings.Builder
	for _, y := range all {
		convict := "A check convicts this mistake: `holdfast lab " + y.Mistake + "`."
		if y.Mistake == "" {
			convict = "No check convicts a herd, because it breaks no rule."
		}
		fmt.Fprintf(&text, "### %s: %s\n\n    %s\n\n%s\n\n![%s](lab/%s.svg)\n\n%s %s\n\n", y.Name, y.Title, y.Code, y.Tale, y.Title, y.Name, y.Lesson, convict)
	}
	want := head + begin + text.String() + end + tail
	switch {
	case want == string(b):
	case !*update:
		t.Errorf("the stories in %s differ from the code: run go test ./conformance/story -update", path)
	default:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStoriesNameTheirMistakes compares the names of stories with those of package lab,
// because the command has one list for both.
func TestStoriesNameTheirMistakes(t *testing.T) {
	seen := map[string]bool{}
	for _, y := range story.Stories() {
		if _, err := lab.Find(y.Name); err == nil || seen[y.Name] {
			t.Errorf("%s names two stories, or a story and a mistake", y.Name)
		}
		seen[y.Name] = true
		// A herd breaks no rule of the check.
		if _, err := lab.Find(y.Mistake); err != nil && y.Name != "herd" {
			t.Errorf("the mistake of %s: %v", y.Name, err)
		}
	}
}

// play plays a story, and checks its outcome and that its drawing fits on a terminal.
func play(t *testing.T, set *story.Set, y story.Story) *story.Result {
	r, err := story.Play(t.Context(), y, set)
	servertest.Started(t, err)
	var b strings.Builder
	if err := r.Text(&b, true); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
	if !r.OK() {
		t.Fatalf("wrong lock violated: %v, want true; holdfast violated: %v, want false", r.Wrong.Violated, r.Right.Violated)
	}
	if r.Wrong.Outcome == "" || r.Right.Outcome == "" {
		t.Error("an outcome is missing")
	}
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if len(line) > 79 || i >= 25 || strings.ContainsFunc(line, func(c rune) bool { return c > unicode.MaxASCII }) {
			t.Errorf("line %d does not fit on the terminal: %s", i+1, line)
		}
	}
	return r
}

// same compares each file of a directory with that of another one.
func same(t *testing.T, one, other string) {
	t.Helper()
	files, err := os.ReadDir(one)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		a, err := os.ReadFile(filepath.Join(one, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(other, f.Name())); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs from the drawing of its story (%v): run go test ./conformance/story -update", f.Name(), err)
		}
	}
}
