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
	"github.com/holdfast-go/holdfast/check/lab"
)

// TestMistakesAreConvicted requires that the check convicts each mistake of the rule that it breaks.
func TestMistakesAreConvicted(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a dozen experiments of several seconds")
	}
	for _, m := range lab.Mistakes() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			r, err := lab.Run(t.Context(), m.Name, lab.Options{Dir: t.TempDir(), Duration: 3 * time.Minute})
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
	r, err := lab.Run(t.Context(), lab.Control, lab.Options{Dir: t.TempDir()})
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

var update = flag.Bool("update", false, "write docs/lab.md anew")

// TestLabPageIsCurrent requires that docs/lab.md has the table that the code produces.
func TestLabPageIsCurrent(t *testing.T) {
	const path = "../../docs/lab.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), "<!-- mistakes: printed by check/lab -->\n")
	_, tail, ok2 := strings.Cut(rest, "<!-- end -->\n")
	if !ok || !ok2 {
		t.Fatal("the mark for the table is missing")
	}
	var table strings.Builder
	for _, m := range lab.Mistakes() {
		fmt.Fprintf(&table, "### %s: %s\n\n    %s\n\n%s\n\nHoldfast: %s\n\n", m.Name, m.Title, m.Code, m.What, m.Instead)
	}
	want := head + "<!-- mistakes: printed by check/lab -->\n" + table.String() + "<!-- end -->\n" + tail
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatal("docs/lab.md is not what the code says: go test ./lab -run TestLabPageIsCurrent -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownMistakeIsInvalid(t *testing.T) {
	_, err := lab.Run(t.Context(), "no such", lab.Options{})
	if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "clock-token") {
		t.Fatal(err)
	}
	_, err = lab.Run(t.Context(), lab.Control, lab.Options{Run: 1})
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
