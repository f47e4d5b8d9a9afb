//go:build linux || darwin

package lab_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lab"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/redisstore/redlock"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

// docs is the directory of the drawings.
const docs = "../../../../docs/lab"

// TestStories plays every story on its server. The wrong lock fails, and holdfast does not.
// The drawings equal those in docs/lab.
func TestStories(t *testing.T) {
	var all []lab.Story
	for _, m := range lab.Mistakes() {
		all = append(all, m.Stories...)
	}
	results := make([]*lab.Result, len(all))
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
				set, err := lab.NewSet()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(set.Close)
				for _, i := range group {
					t.Run(all[i].Name, func(t *testing.T) { results[i] = play(t, set, all[i].Name) })
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
		write(t, docs, results)
	}
	fresh := t.TempDir()
	write(t, fresh, results)
	same(t, fresh, docs)
	same(t, docs, fresh)
}

func write(t *testing.T, dir string, results []*lab.Result) {
	t.Helper()
	if err := lab.Write(dir, results); err != nil {
		t.Fatal(err)
	}
}

// play plays a story, and checks its outcome and that its drawing fits on a terminal.
func play(t *testing.T, set *lab.Set, name string) *lab.Result {
	r, err := lab.Play(t.Context(), name, set)
	if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("%s differs from the drawing of its story (%v): run go test -run TestStories -update", f.Name(), err)
		}
	}
}
