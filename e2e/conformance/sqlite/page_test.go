//go:build linux

package sqlite

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestPageShowsFiles: each fragment of code in docs/adding-a-store.md is in one of the
// files.
func TestPageShowsFiles(t *testing.T) {
	page, err := os.ReadFile("../../../docs/adding-a-store.md")
	must.Succeed(t, err)
	var sources []string
	for _, file := range []string{"../../../sqlitestore/store.go", "sqlite_test.go", "../example/holdfast-sqlite/main.go", "../example/withserver/withserver_test.go"} {
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		sources = append(sources, string(text))
	}
	fragments := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(fragments) < 6 {
		t.Fatalf("the page has %d fragments of code", len(fragments))
	}
	for _, f := range fragments {
		found := false
		for _, s := range sources {
			found = found || strings.Contains("\n"+s, "\n"+f[1]) // whole lines
		}
		if !found {
			t.Errorf("no file has this fragment of the page:\n%s", f[1])
		}
	}
	for _, m := range mistakes {
		if _, test, _ := strings.Cut(m.test, "/"); test != "" && !strings.Contains(string(page), "`"+test+"`") {
			t.Errorf("the page does not contain that %s convicts: %s", test, m.name)
		}
	}
}
