//go:build linux || darwin

package main_test

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// TestPackagesInitializeLittle limits the memory that the packages of every build allocate before
// main. Each run starts two processes, so it initializes the packages twice.
func TestPackagesInitializeLittle(t *testing.T) {
	const most = 32 << 10
	r := newSandbox(t).finish(exec.Command(binary, "version"), []string{"GODEBUG=inittrace=1"}, "")
	r.expectStatus(t, 0)
	found := regexp.MustCompile(`(?m)^init (github\.com/holdfast-go/holdfast/(?:fence|check|driver|filestore|memstore|optimistic|internal|cmd)\S*) .* clock, (\d+) bytes`).FindAllStringSubmatch(r.stderr, -1)
	if len(found) == 0 {
		t.Fatalf("no trace:\n%s", r.stderr)
	}
	for _, m := range found {
		if n, err := strconv.Atoi(m[2]); err != nil || n > most {
			t.Errorf("%s: %d bytes, %v; want at most %d", m[1], n, err, most)
		}
	}
}
