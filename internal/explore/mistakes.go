package explore

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/mutation"
)

// Mistake is a mistake in the source that an exploration must find.
type Mistake struct {
	Name   string
	Plants mutation.Plants
	In     string // a part of the name of the exploration that finds it
	Deeper int    // than the usual exploration
}

// Marks returns what mutation.Marks returns. It skips the test in short mode, because the test builds many times over.
func Marks(t *testing.T, under ...string) map[string]string {
	if testing.Short() {
		t.Skip("builds the tests of this package many times over")
	}
	marks, err := mutation.Marks(under...)
	if err != nil {
		t.Fatal(err)
	}
	return marks
}

// Find plants a mistake in a copy of the source of a package, and builds and runs an exploration of it.
func Find(t *testing.T, m Mistake, marks map[string]string, tested, exploration string) {
	t.Run(m.Name, func(t *testing.T) {
		t.Parallel()
		bin, err := mutation.BuildTest(t.TempDir(), tested, marks, m.Plants)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // seconds are enough on a quiet machine
		defer cancel()
		began := time.Now()
		out, err := exec.CommandContext(ctx, bin, "-test.failfast", "-test.run", "^"+exploration+"$/"+m.In,
			"-explore", strconv.Itoa(m.Deeper)).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "client A") {
			t.Fatalf("not found, %v:\n%s", err, out)
		}
		t.Logf("found in %s:\n%s", time.Since(began).Round(time.Millisecond), out)
	})
}

// Replay replays a history of the check through the state machine of a lease, which a test of package holdfast does.
func Replay(t *testing.T, history string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "test", "-v", "-count", "1", "-run", "^TestRecordedHistoryIsAllowed$",
		"github.com/holdfast-go/holdfast", "-history", history).CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
