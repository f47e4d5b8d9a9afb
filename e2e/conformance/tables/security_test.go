package tables

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestTableOfTrustNamesItsTests: each row of the table in docs/security.md names tests that exist, or the page
// that lists them. So does each row of its table of refused logins.
func TestTableOfTrustNamesItsTests(t *testing.T) {
	text, err := os.ReadFile("../../../docs/security.md")
	must.Succeed(t, err)
	_, section, _ := strings.Cut(string(text), "\n## The table of trust\n")
	exists, rows := tests(t), 0
	for line := range strings.Lines(section) {
		m := row.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || m[1] == "never" || m[1] == "---" {
			continue
		}
		rows++
		for test := range strings.SplitSeq(m[2], ", ") {
			if !exists(test) && !strings.HasPrefix(test, "[promises.txt](") {
				t.Errorf("%q: there is no test %q", m[1], test)
			}
		}
	}
	_, section, _ = strings.Cut(string(text), "| refused logins in a minute, at most | test |\n")
	section, _, _ = strings.Cut(section, "\n\n")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if test := strings.TrimSpace(cells[3]); test != "---" && !exists(test) {
			t.Errorf("%q: there is no test %q", cells[1], test)
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}
