//go:build linux || darwin

package checktest_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

const convictEnv = "HOLDFAST_CHECKTEST_CONVICT"

// TestBrokenStoreFails fails in the process that TestHistoryOfABrokenRuleIsKept starts. Each client
// has a store of its own, so all clients hold each name at the same time.
func TestBrokenStoreFails(t *testing.T) {
	if os.Getenv(convictEnv) == "" {
		t.Skip("TestHistoryOfABrokenRuleIsKept runs this test")
	}
	checktest.Run(t, check.Config{Duration: time.Second, Faults: []string{}, Target: &check.Target{
		Open: func(context.Context) (driver.Store, error) { return memstore.New(), nil },
	}})
}

// TestHistoryOfABrokenRuleIsKept requires that the history of a broken rule outlives its
// test, and that the failure names the directory.
func TestHistoryOfABrokenRuleIsKept(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestBrokenStoreFails$")
	cmd.Env = append(os.Environ(), convictEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("a store with two holders broke no rule:\n%s", out)
	}
	found := regexp.MustCompile(`are in (\S+)`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("the failure does not name a directory:\n%s", out)
	}
	events, err := check.ReadFiles(filepath.Join(string(found[1]), check.HistoryFile))
	must.Succeed(t, err)
	if r, err := check.Judge(events); err != nil || r.OK() {
		t.Errorf("Judge(kept history) = %+v, %v; want a broken rule", r, err)
	}
	if st, err := os.Stat(filepath.Join(string(found[1]), check.PageFile)); err != nil || st.Size() == 0 {
		t.Errorf("the page was not kept: %v", err)
	}
}
