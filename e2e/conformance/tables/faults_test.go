package tables

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

const checkPage = "../../../docs/check.md"

// faultInSource finds the kinds of faults in the source of package check. They are fields
// of a StoreFault, arguments of a function that makes one, and constants.
var faultInSource = regexp.MustCompile(`(?m)(?:\bKind:\s+|\b(?:fault|set|affect|\w+Fault)\(|^\tfault\w+\s+= )"([a-z-]+)"`)

var quoted = regexp.MustCompile("`([a-z-]+)`")

// TestCheckPageNamesEveryFault compares the section of docs/check.md about faults with the
// source of package check.
func TestCheckPageNamesEveryFault(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(repository, "check/*.go"))
	must.Succeed(t, err)
	inSource := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "crew.go") { // crew.go has commands for workers
			continue
		}
		for _, m := range faultInSource.FindAllStringSubmatch(string(text), -1) {
			inSource[m[1]] = true
		}
	}
	delete(inSource, "heal") // the end of a fault
	if len(inSource) == 0 {
		t.Fatal("no kind of fault was found in the source of package check")
	}

	page, err := os.ReadFile(checkPage)
	must.Succeed(t, err)
	_, section, _ := strings.Cut(string(page), "\n## The faults\n")
	section, _, _ = strings.Cut(section, "\n## ")
	onPage := map[string]bool{}
	for line := range strings.Lines(section) {
		if m := row.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			line = m[2] // the first column has names of stores
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			onPage[m[1]] = true
		}
	}
	for kind := range inSource {
		if !onPage[kind] {
			t.Errorf("docs/check.md does not name the fault %q in its section about faults", kind)
		}
	}
	for kind := range onPage {
		if !inSource[kind] {
			t.Errorf("docs/check.md names the fault %q, which package check does not have", kind)
		}
	}
	t.Logf("%d kinds", len(inSource))
}
