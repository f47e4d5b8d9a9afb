//go:build linux || darwin

package main_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestNestedRunIsRefused: an inner run requests the lock that its outer run holds. It would wait
// forever, so it refuses, and names the variable by which it knows the outer run. It does not refuse a
// request that the outer run does not keep waiting.
func TestNestedRunIsRefused(t *testing.T) {
	t.Parallel()
	w := withStore(t)
	nested := func(outer []string, words ...string) result {
		t.Helper()
		return w.run(append(append(append([]string{"run"}, outer...), "--", binary, "run"), words...)...)
	}
	two := []string{"--limit", "2", "x"}
	for name, r := range map[string]result{
		"the same name":         nested([]string{"x"}, "--wait", "2s", "x", "--", "true"),
		"the name of the outer": nested([]string{"x", "--", binary, "run", "y"}, "--wait", "2s", "x", "--", "true"),
		"exclusive in shared":   nested([]string{"--shared", "x"}, "--wait", "2s", "x", "--", "true"),
		"shared in exclusive":   nested([]string{"x"}, "--wait", "2s", "--shared", "x", "--", "true"),
		"the last permit":       nested(append(two, "--", binary, "run", "--limit", "2", "x"), "--wait", "2s", "--limit", "2", "x", "--", "true"),
		"hold":                  w.run("run", "x", "--", binary, "hold", "--wait", "2s", "--pid", strconv.Itoa(os.Getpid()), "x"),
	} {
		if r.status != 64 || strings.Count(r.stderr, "\"x\"") != 1 || !strings.Contains(r.stderr, "unset HOLDFAST_HELD") {
			t.Errorf("%s: status %d, %s", name, r.status, r.stderr)
		}
	}
	other := "file://" + w.path("other")
	for name, c := range map[string]struct {
		r    result
		want int
	}{
		"another name":      {nested([]string{"x"}, "y", "--", "true"), 0},
		"another store":     {nested([]string{"x"}, "--store", other, "x", "--", "true"), 0},
		"another namespace": {nested([]string{"x"}, "--namespace", "n", "x", "--", "true"), 0},
		"without waiting":   {nested([]string{"x"}, "--try", "x", "--", "true"), 75},
		"shared in shared":  {nested([]string{"--shared", "x"}, "--shared", "x", "--", "true"), 0},
		"another permit":    {nested(two, "--limit", "2", "x", "--", "true"), 0},
	} {
		if c.r.status != c.want {
			t.Errorf("%s: status %d, %s", name, c.r.status, c.r.stderr)
		}
	}
}

// TestNestedSharedRunBehindExclusiveWaiterIsRefused: an exclusive waiter waits for the outer run, and the inner run
// would queue behind that waiter.
func TestNestedSharedRunBehindExclusiveWaiterIsRefused(t *testing.T) {
	t.Parallel()
	w := withStore(t)
	p := w.startCmd(shell(`exec "$0" run --shared x -- sh -c 'echo ready; read line; exec "$0" run --wait 2s --shared x -- true' "$0"`), nil)
	p.stdout.expect("ready")
	w.start("run", "x", "--", "true")
	awaitQueue(t, w.locker(), 1)
	p.send("")
	p.expectStatus(64)
}

// TestRunAfterOuterRunIsNotRefused: a process has the variables of a run that has released its lock, as a daemon or
// a job of at has them. It waits for the present holder, and for the end of a minimum hold.
func TestRunAfterOuterRunIsNotRefused(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, w *sandbox, hold func(), flags ...string) {
		r := w.run(append(append([]string{"run"}, flags...), "x", "--", "env")...).expectStatus(t, 0)
		var left []string
		for line := range strings.Lines(r.stdout) {
			if strings.HasPrefix(line, "HOLDFAST_") {
				left = append(left, strings.TrimSpace(line))
			}
		}
		hold()
		w.runIn(left, "", "run", "--wait", "100ms", "x", "--", "true").expectStatus(t, 75)
	}
	t.Run("another holder", func(t *testing.T) {
		w := withStore(t)
		test(t, w, func() { mustLock(t, w.locker(), "x") })
	})
	t.Run("a minimum hold", func(t *testing.T) {
		w := newSandbox(t)
		w.env = append(w.env, "HOLDFAST_STORE="+startRedis(t)) // it keeps the released lock
		test(t, w, func() {}, "--min-hold", "1h")
	})
}
