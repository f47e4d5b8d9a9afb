//go:build linux

package sqlite

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// mistake is a common mistake of a first store, planted in a copy of this store.
type mistake struct {
	name string
	// edits are pairs: a text of a file of the store, and its replacement.
	edits []string
	// test is the test that must convict the mistake. Its output contains says.
	test, says string
}

var mistakes = []mistake{
	{"a write does not compare the version", []string{
		`AND version = ? RETURNING`, `AND ? <> 0 RETURNING`,
	}, "TestTorture", "exclusion           BROKEN"},
	{"the first write of a record replaces one", []string{
		`ON CONFLICT DO NOTHING`, `ON CONFLICT DO UPDATE SET data = excluded.data, version = excluded.version`,
	}, "TestValues/Versions", "Put of a new key that exists"},
	{"a lost answer counts as not written", []string{
		`driver.Errorf(driver.CodeUnknown, "sqlite: commit`, `driver.Errorf(driver.CodeUnavailable, "sqlite: commit`,
	}, "TestConformance/Faults", "a name whose grants have ended is free"},
	{"the time is that of the client", []string{
		"\treturn time.Unix(t.Unix()), nil\n", "\treturn time.Now(), nil\n",
	}, "TestConformance/TokensOfAWrongClock", "want busy"},
	{"the list has every key", []string{
		`substr(key, 1, length(?1)) = ?1`, `length(?1) > 0`,
	}, "TestConformance/List", "List: "},
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
	source := "../../../sqlitestore/store.go"
	const clock = "../../../sqlitestore/clock_unix.go"
	if text, err := os.ReadFile(clock); err != nil {
		t.Fatal(err)
	} else if strings.Contains(string(text), m.edits[0]) {
		source = clock
	}
	for file, edits := range map[string][]string{
		source:           m.edits,
		"sqlite_test.go": {"check.Config{Duration:", fmt.Sprintf("check.Config{Seed: %d, Duration:", seed)},
	} {
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		planted := string(text)
		for i := 0; i < len(edits); i += 2 {
			if n := strings.Count(planted, edits[i]); n != 1 {
				t.Fatalf("%s contains %q %d times, want once: the mistake must follow the source", file, edits[i], n)
			}
			planted = strings.Replace(planted, edits[i], edits[i+1], 1)
		}
		path, err := filepath.Abs(file)
		must.Succeed(t, err)
		replace[path] = filepath.Join(dir, filepath.Base(file))
		must.Succeed(t, os.WriteFile(replace[path], []byte(planted), 0o600))
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(overlay, b, 0o600))
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return bin
}
