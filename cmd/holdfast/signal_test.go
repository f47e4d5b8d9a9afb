//go:build linux || darwin

package main_test

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// TestSignalsReachTheCommand sends several signals to run, one after the other. The command receives
// each of them.
func TestSignalsReachTheCommand(t *testing.T) {
	w := withStore(t)
	p := w.start(append([]string{"run", "x"}, asTestCommand()...)...)
	p.ready()
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT} {
		p.signal(s)
		p.stdout.expect("signal " + s.String())
	}
	// The lock is still held, and the command's status is still its own.
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	p.send("exit 6")
	if got := p.status(); got != 6 {
		t.Errorf("status %d, want 6", got)
	}
}

// TestSignalReachesTheGroup: a child of the command also receives the signal that run receives.
func TestSignalReachesTheGroup(t *testing.T) {
	w := withStore(t)
	c := append([]string{"run", "x", "--", "sh", "-c", `exec 3<&0; trap "exit 3" TERM; "$@" exit-on-term <&3 & wait`, "sh"}, asTestCommand()[1:]...)
	p := w.start(c...)
	p.ready()
	p.signal(syscall.SIGTERM)
	p.stdout.expect("signal " + syscall.SIGTERM.String())
	if got := p.status(); got != 3 {
		t.Errorf("status %d, want 3", got)
	}
}

// TestIgnoredSignalStaysIgnored: run is started with HUP ignored, as under nohup. Its command ignores
// HUP, too.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	w := withStore(t)
	p := w.startCmd(shell(`trap "" HUP; exec "$0" run x -- sh -c 'kill -HUP $$; echo alive; read line'`), nil)
	p.stdout.expect("alive")
	p.signal(syscall.SIGHUP)
	p.send("")
	if got := p.status(); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
}

// TestIgnoredSignalsAreInherited: holdfast is started with HUP and INT ignored. The command starts
// with them ignored as well, and the other signals have their default action.
func TestIgnoredSignalsAreInherited(t *testing.T) {
	w := withStore(t)
	const script = `kill -HUP $$; kill -INT $$; echo alive`
	p := w.startCmd(shell(`trap "" HUP INT; "$0" run x -- sh -c '`+script+`'`), nil)
	p.stdout.expect("alive")
	if got := p.status(); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
	r := w.run("run", "x", "--", "sh", "-c", "kill -USR2 $$; echo alive")
	r.expectStatus(t, 128+int(syscall.SIGUSR2))
}

// TestSignalTestsPassUnderNohup runs the tests that send HUP and INT in a process that was
// started with both ignored.
func TestSignalTestsPassUnderNohup(t *testing.T) {
	w := newSandbox(t)
	const tests = "^(TestSignalsReachTheCommand|TestWaitEndsBySignal|TestIgnoredSignals?.*)$"
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
			holder := w.start(append([]string{"run", "x"}, asTestCommand()...)...)
			holder.ready()
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

// awaitQueue waits until a number of waiters wait for x.
func awaitQueue(t *testing.T, l *holdfast.Locker, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit())
	defer cancel()
	for st, err := range l.Watch(ctx, "x") {
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Waiters) == n {
			return
		}
	}
	t.Fatalf("the queue never has %d waiters", n)
}

// TestCommandSurvivesClosedStderr: the reader of standard error has closed it. The command still
// runs to its end.
func TestCommandSurvivesClosedStderr(t *testing.T) {
	w := withStore(t)
	p := w.startCmd(shell(`{ { "$0" run -v x -- sh -c '
		trap "" PIPE
		while echo probe; do :; done >&2
		echo closed
		read line
		exit 7' 2>&1 >&3; echo "status $?" >&3; } | true; } 3>&1`), nil)
	p.stdout.expect("closed")
	p.send("on")
	p.stdout.expect("status 7")
}

// TestCommandHasInputAndOutput requires that the command has the standard streams and the other
// descriptors that run was started with.
func TestCommandHasInputAndOutput(t *testing.T) {
	w := withStore(t)
	in := strings.Repeat("a line of input\n", 20000)
	r := w.runIn(nil, in, "run", "x", "--", "sh", "-c", "cat; echo said >&2")
	r.expectStatus(t, 0)
	if r.stdout != in {
		t.Errorf("%d bytes came through of %d", len(r.stdout), len(in))
	}
	if r.stderr != "said\n" {
		t.Errorf("stderr: %q", r.stderr)
	}
	// Scripts use descriptors beyond the standard ones, too.
	p := w.startCmd(shell(`echo three >f; "$0" run x -- cat /dev/fd/3 3<f`), nil)
	p.stdout.expect("three")
}

// TestCommandGetsEnvironment requires that the command's environment contains the token and the name
// of its lock.
func TestCommandGetsEnvironment(t *testing.T) {
	w := withStore(t)
	show := []string{"--", "sh", "-c", `env | grep ^HOLDFAST_ | sort`}
	environment := func(env []string, flags ...string) map[string]string {
		t.Helper()
		r := w.runIn(env, "", append(append(append([]string{"run"}, flags...), "a name"), show...)...)
		r.expectStatus(t, 0)
		vars := map[string]string{}
		for line := range strings.Lines(r.stdout) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			vars[k] = v
		}
		return vars
	}
	outer := []string{"HOLDFAST_SLOT=9", "HOLDFAST_TOKEN=9", "HOLDFAST_NAME=outer"}
	first := environment(outer)
	if first["HOLDFAST_NAME"] != "a name" || first["HOLDFAST_STORE"] != w.storeURL() || first["HOLDFAST_HELD"] == "" || len(first) != 4 {
		t.Errorf("environment %v", first)
	}
	last := number(t, first["HOLDFAST_TOKEN"])
	for range 5 {
		v := number(t, environment(nil)["HOLDFAST_TOKEN"])
		if v <= last {
			t.Errorf("token %d after %d", v, last)
		}
		last = v
	}
	if v := environment(nil, "--limit", "2"); v["HOLDFAST_SLOT"] != "0" {
		t.Errorf("with --limit: %v", v)
	}
	// The flag --store does not change the command's HOLDFAST_STORE.
	if v := environment(nil, "--store", "memory://"); v["HOLDFAST_STORE"] != w.storeURL() {
		t.Errorf("with --store: %v", v)
	}
}

// TestEachHolderHasItsSlot: three holders have three slots.
func TestEachHolderHasItsSlot(t *testing.T) {
	w := withStore(t)
	var slots []string
	for range 3 {
		p := w.start("run", "--limit", "3", "x", "--", "sh", "-c", "echo slot $HOLDFAST_SLOT; read line")
		slots = append(slots, strings.Fields(p.stdout.expect("slot "))[1])
	}
	w.run("run", "--limit", "3", "--try", "x", "--", "true").expectStatus(t, 75)
	slices.Sort(slots)
	if !slices.Equal(slots, []string{"0", "1", "2"}) {
		t.Errorf("slots %v", slots)
	}
}
