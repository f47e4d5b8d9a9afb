//go:build linux

package main_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// living reports whether a process runs. A zombie does not.
func living(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z")
}

// TestWaitEndsBeforeCleanup: the store does not answer when the timeout of --wait ends. The front
// ends, and the guardian continues to withdraw the queue entry. The exit status reports that the
// store is unavailable.
func TestWaitEndsBeforeCleanup(t *testing.T) {
	t.Parallel()
	l := newEtcdSandbox(t)
	holder := l.start(append([]string{"run", "--store", l.server, "x", "--"}, l.testProcess("ends")...)...)
	holder.ready()
	// On a slow machine the wait may end before the store is cut off. Then the test tries
	// again with a longer wait.
	for wait := 4 * time.Second; ; wait *= 2 {
		waiter := l.start("run", "--store", l.proxy, "--wait", wait.String(), "x", "--", "true")
		guardian := 0
		for guardian == 0 && living(waiter.cmd.Process.Pid) {
			st, err := l.locker.Inspect(t.Context(), "x")
			must(t, err)
			if len(st.Waiters) > 0 {
				guardian = st.Waiters[0].PID
			}
		}
		l.cut()
		got := waiter.status()
		if got == 75 && wait < waitLimit() {
			l.heal()
			continue
		}
		if got != 69 {
			t.Errorf("status %d, want 69: %s", got, waiter.stderr.all())
		}
		if guardian == 0 {
			t.Fatal("the wait ended before its queue entry was seen")
		}
		if !living(guardian) {
			t.Errorf("run ended after its guardian: %s", waiter.stderr.all())
		}
		_ = syscall.Kill(guardian, syscall.SIGTERM)
		return
	}
}
