//go:build linux || darwin

package main_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestNestedRunIsRefused: an inner run requests the lock that its outer run holds. It would wait
// forever, so it refuses.
func TestNestedRunIsRefused(t *testing.T) {
	t.Parallel()
	w := withStore(t)
	inner := []string{"--", binary, "run", "--wait", "2s"}
	nested := func(outer []string, words ...string) result {
		t.Helper()
		return w.run(append(append(append([]string{"run"}, outer...), inner...), words...)...)
	}
	for name, r := range map[string]result{
		"the same name":         nested([]string{"x"}, "x", "--", "true"),
		"the name of the outer": nested([]string{"x", "--", binary, "run", "y"}, "x", "--", "true"),
		"shared":                nested([]string{"--shared", "x"}, "--shared", "x", "--", "true"),
		"hold":                  w.run("run", "x", "--", binary, "hold", "--wait", "2s", "--pid", strconv.Itoa(os.Getpid()), "x"),
	} {
		if r.status != 64 || strings.Count(r.stderr, "\"x\"") != 1 || !strings.Contains(r.stderr, "outer") {
			t.Errorf("%s: status %d, %s", name, r.status, r.stderr)
		}
	}
	other := "file://" + w.path("other")
	for name, r := range map[string]result{
		"another name":      nested([]string{"x"}, "y", "--", "true"),
		"another store":     nested([]string{"x"}, "--store", other, "x", "--", "true"),
		"another namespace": nested([]string{"x"}, "--namespace", "n", "x", "--", "true"),
	} {
		if r.status != 0 {
			t.Errorf("%s: status %d, %s", name, r.status, r.stderr)
		}
	}
}
