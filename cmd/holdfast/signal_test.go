//go:build linux || darwin

package main_test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestSignalsReachTheCommand sends several signals to run, one after the other. The command receives
// each of them.
func TestSignalsReachTheCommand(t *testing.T) {
	w := withStore(t)
	p := w.hold("x")
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT} {
		p.signal(s)
		p.stdout.expect("signal " + s.String())
	}
	// The lock is still held, and the command's status is still its own.
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	p.send("exit 6")
	p.expectStatus(6)
}

// TestSignalReachesTheGroup: a child of the command also receives the signal that run receives.
func TestSignalReachesTheGroup(t *testing.T) {
	w := withStore(t)
	c := append([]string{"run", "x", "--", "sh", "-c", `exec 3<&0; trap "exit 3" TERM; "$@" exit-on-term <&3 & wait`, "sh"}, asTestCommand()[1:]...)
	p := w.start(c...)
	p.ready()
	p.signal(syscall.SIGTERM)
	p.stdout.expect("signal " + syscall.SIGTERM.String())
	p.expectStatus(3)
}

// TestIgnoredSignalsStayIgnored: run is started with HUP and INT ignored, as under nohup. Run and its command both
// ignore them. Without ignored signals, the command starts with the default actions.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	w := withStore(t)
	p := w.startCmd(shell(`trap "" HUP INT; exec "$0" run x -- sh -c 'kill -HUP $$; kill -INT $$; echo alive; read line'`), nil)
	p.stdout.expect("alive")
	p.signal(syscall.SIGHUP)
	p.send("")
	p.expectStatus(0)
	w.run("run", "x", "--", "sh", "-c", "kill -USR2 $$; echo alive").expectStatus(t, 128+int(syscall.SIGUSR2))
}

// TestSignalTestsPassUnderNohup runs the tests that send HUP and INT in a process that was
// started with both ignored.
func TestSignalTestsPassUnderNohup(t *testing.T) {
	w := newSandbox(t)
	const tests = "^(TestSignalsReachTheCommand|TestWaitEndsBySignal|TestIgnoredSignalsStayIgnored)$"
	c := exec.Command("sh", "-c", `trap "" HUP INT; exec "$0" -test.v -test.run "$1"`, testBinary, tests)
	r := w.finish(c, []string{binaryEnv + "=" + binary}, "")
	r.expectStatus(t, 0)
	if !strings.Contains(r.stdout, "--- PASS: TestWaitEndsBySignal/hangup") {
		t.Errorf("the tests did not run:\n%s", r.stdout)
	}
}

// TestWaitEndsBySignal: a signal ends a run that waits. No queue entry is left, and the next waiter
// gets the lock.
func TestWaitEndsBySignal(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			w := withStore(t)
			holder := w.hold("x")
			waiter := w.start("run", "-v", "x", "--", "touch", "ran")
			waiter.stderr.expect("queued for")
			l := w.locker()
			awaitQueue(t, l, 1)
			// SIGUSR1 does not end a run that waits.
			waiter.signal(syscall.SIGUSR1)
			waiter.signal(s)
			if got, want := waiter.status(), 128+int(s); got != want {
				t.Errorf("status %d, want %d: %s", got, want, waiter.stderr.all())
			}
			st, err := l.Inspect(t.Context(), "x")
			if err != nil || len(st.Waiters) != 0 || len(st.Holders) != 1 {
				t.Errorf("after: %+v, %v", st, err)
			}
			holder.send("exit 0")
			holder.status()
			w.run("run", "--try", "x", "--", "test", "!", "-e", "ran").expectStatus(t, 0)
		})
	}
}
