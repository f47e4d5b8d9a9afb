//go:build linux || darwin

package lab_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lab"
)

// TestMistakesAreConvicted requires that the check convicts each mistake of the rule that it breaks.
func TestMistakesAreConvicted(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a dozen experiments of several seconds")
	}
	for _, m := range lab.Mistakes() {
		if !m.Checked() {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			r, err := lab.Check(t.Context(), m.Name, lab.Options{Dir: t.TempDir(), Duration: 3 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if r.Expected == nil {
				t.Fatalf("after %d runs:%s", r.Runs, explain(r.Report))
			}
			t.Logf("seed %d: %s: %s", r.Seed, r.Expected.Rule, r.Expected.Text)
		})
	}
}

// TestCorrectLockIsAcquitted requires that the check acquits the lock without a mistake. So the check
// convicts the mistakes, and not the lock.
func TestCorrectLockIsAcquitted(t *testing.T) {
	t.Parallel()
	r, err := lab.Check(t.Context(), lab.Control, lab.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if r.Report.Stats.Grants == 0 {
		t.Fatal("the store has granted no lock")
	}
	if !r.Report.OK() {
		t.Error(explain(r.Report))
	}
}

var update = flag.Bool("update", false, "write docs/lab.md or docs/lab anew")

// TestLabPageIsCurrent requires that docs/lab.md has the text of every mistake.
func TestLabPageIsCurrent(t *testing.T) {
	const path = "../../../../docs/lab.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), "<!-- mistakes: printed by cmd/holdfast/internal/lab -->\n")
	_, tail, ok2 := strings.Cut(rest, "<!-- end -->\n")
	if !ok || !ok2 {
		t.Fatal("the mark for the list is missing")
	}
	var list strings.Builder
	for _, m := range lab.Mistakes() {
		fmt.Fprintf(&list, "### %s: %s\n\n", m.Name, m.Title)
		if len(m.Stories) == 0 {
			fmt.Fprintf(&list, "`%s`\n\n%s\n\nInstead: %s\n\n", m.Code, m.What, m.Instead)
		} else { // a drawing shows the code, and what holdfast does
			fmt.Fprintf(&list, "%s\n\n", m.What)
		}
		for _, y := range m.Stories {
			fmt.Fprintf(&list, "![%s](lab/%s.svg)\n\n", y.Name, y.Name)
		}
	}
	want := head + "<!-- mistakes: printed by cmd/holdfast/internal/lab -->\n" + list.String() + "<!-- end -->\n" + tail
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatal("docs/lab.md is not what the code says: go test -run TestLabPageIsCurrent -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestNamesAreUnique requires that each name is that of one story, or of one mistake with a check,
// because the command has one list for both.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{lab.Control: true}
	for _, m := range lab.Mistakes() {
		names := []string{}
		if m.Checked() {
			names = append(names, m.Name)
		}
		for _, y := range m.Stories {
			names = append(names, y.Name)
		}
		for _, name := range names {
			if seen[name] {
				t.Errorf("two of the lab's stories and mistakes have the name %s", name)
			}
			seen[name] = true
		}
	}
}

func TestUnknownMistakeIsInvalid(t *testing.T) {
	_, err := lab.Check(t.Context(), "no such", lab.Options{})
	if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "clock-token") {
		t.Fatal(err)
	}
	_, err = lab.Check(t.Context(), lab.Control, lab.Options{Duration: 1})
	if !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
}

func explain(r *check.Report) string {
	var b strings.Builder
	_ = r.Summary(&b)
	_ = r.Explain(&b)
	return "\n" + b.String()
}
