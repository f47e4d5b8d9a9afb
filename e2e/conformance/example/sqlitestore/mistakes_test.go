//go:build linux

package sqlitestore

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mistake is a common mistake of a first store, planted in a copy of this store.
type mistake struct {
	name string
	// edits are pairs: a text of the source, and its replacement.
	edits []string
	// test is the test that must convict the mistake. Its output contains says.
	test, says string
}

var mistakes = []mistake{
	{"the release compares only the name", []string{
		`"DELETE FROM entries"+ownGrant, g.Token, g.ID, t.now)`, `"DELETE FROM entries WHERE granted AND name = ?", []byte(g.Name))`,
	}, "TestConformance/ReleaseByStaleOwner", "release by a stale owner"},
	{"tokens come from the client's clock", []string{
		`INSERT INTO entries (space,`, `INSERT INTO entries (seq, space,`,
		`VALUES (?, ?, ?, ?, ?, ?)`, `VALUES (?, ?, ?, ?, ?, ?, ?)`,
		`[]any{t.space, []byte(r.Name), r.ID,`, `[]any{time.Now().UnixNano(), t.space, []byte(r.Name), r.ID,`,
	}, "TestConformance/TokensOfAWrongClock", "a client whose clock is in the year 2000 got token"},
	{"a lost answer counts as busy", []string{
		`driver.Errorf(driver.CodeUnknown, "sqlite: commit`, `driver.Errorf(driver.CodeUnavailable, "sqlite: commit`,
	}, "TestConformance/AnswerLost", "was called unavailable, and the next one still gets busy"},
	{"the validity runs from the answer", []string{
		"\tif err == nil && g.Token == 0 {\n", "\tg.SentAt = driver.Now()\n\tif err == nil && g.Token == 0 {\n",
	}, "TestConformance/ValidityNotFromTheAnswer", "although every answer took"},
	{"the validity of a renewal runs from the answer", []string{
		"\tfor i := range results {\n", "\tfor i := range results {\n\t\tresults[i].SentAt = driver.Now()\n",
	}, "TestConformance/ValidityNotFromTheAnswer", "although every answer took"},
	{"a release notifies no waiter", []string{
		"\t\tt.wakeNext(g.Name)\n", "",
	}, "TestConformance/PushWakesWaiter", "no waiter receives one"},
	{"a waiter tries before it listens, and then only listens", []string{
		"\tconn, err := net.Listen", "\tif g, err := s.try(ctx, r); driver.CodeOf(err) != driver.CodeBusy {\n\t\treturn g, err\n\t}\n\tconn, err := net.Listen",
		"\t\tg, err := s.try(ctx, r)\n", "\t\tvar g driver.Grant\n\t\terr := error(&driver.BusyError{})\n\t\tif queued {\n\t\t\tg, err = s.try(ctx, r)\n\t\t}\n",
		"\t\t_ = conn.SetReadDeadline(time.Now().Add(fallback))\n", "",
	}, "TestTorture", "it gave up"},
}

// TestMistakesAreConvicted: the suite or the check finds each mistake.
func TestMistakesAreConvicted(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the test binary many times over")
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			for seed := 1; ; seed++ {
				bin := m.build(t, seed)
				cmd := exec.CommandContext(t.Context(), bin, "-test.v", "-test.run", "^"+strings.ReplaceAll(m.test, "/", "$/^")+"$")
				cmd.Dir = t.TempDir()
				out, err := cmd.CombinedOutput()
				if err != nil && regexp.MustCompile(`--- FAIL: `+m.test+` `).Match(out) && strings.Contains(string(out), m.says) {
					return
				}
				// The check depends on chance, so it runs with three seeds.
				if m.test != "TestTorture" || seed == 3 {
					t.Fatalf("the output of %s does not contain %q (%v):\n%s", m.test, m.says, err, out)
				}
			}
		})
	}
}

// build compiles this package's tests with the mistake in its source, and a seed for its
// check.
func (m *mistake) build(t *testing.T, seed int) string {
	t.Helper()
	dir := t.TempDir()
	overlay, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "planted.test")
	replace := map[string]string{}
	for file, edits := range map[string][]string{
		"sqlitestore.go":      m.edits,
		"sqlitestore_test.go": {"check.Config{Duration:", fmt.Sprintf("check.Config{Seed: %d, Duration:", seed)},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source := string(text)
		for i := 0; i < len(edits); i += 2 {
			if n := strings.Count(source, edits[i]); n != 1 {
				t.Fatalf("%s contains %q %d times, want once: the mistake must follow the source", file, edits[i], n)
			}
			source = strings.Replace(source, edits[i], edits[i+1], 1)
		}
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		replace[path] = filepath.Join(dir, file)
		if err := os.WriteFile(replace[path], []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return bin
}
