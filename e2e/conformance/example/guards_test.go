package example

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsListEachGuard: the comment of package fence lists the guard of every store that has one.
// The page of that store in docs has a section about the guard.
func TestDocsListEachGuard(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join("../../..", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	fence := read("fence/doc.go")
	for _, guard := range []string{"SQL", "Column", "pgstore", "redisstore", "etcdstore", "zkstore"} {
		if !regexp.MustCompile(`(?m)^//	` + guard + ` `).MatchString(fence) {
			t.Errorf("package fence does not list %s among the guards", guard)
		}
	}
	for page, guard := range map[string]string{"sql": "pgstore.Guard", "redis": "Guard()", "etcd": "Guard()", "zookeeper": "Guard"} {
		found := false
		for _, section := range strings.Split(read("docs/"+page+".md"), "\n## ")[1:] {
			title, _, _ := strings.Cut(section, "\n")
			found = found || regexp.MustCompile(`(?i)guard|writes`).MatchString(title) && strings.Contains(section, guard)
		}
		if !found {
			t.Errorf("docs/%s.md has no section with %s", page, guard)
		}
	}
}
