//go:build linux || darwin

package main_test

import (
	"slices"
	"strings"
	"testing"
)

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
	r := w.runIn(nil, in, "run", "x", "--", "sh", "-c", "cat; echo said >&2").expectStatus(t, 0)
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

// TestCommandGetsArgumentsUnchanged requires that bytes that are not UTF-8 reach the command.
func TestCommandGetsArgumentsUnchanged(t *testing.T) {
	const argument = "a\xffb\u2028"
	r := withStore(t).run("run", "x", "--", "printf", "%s", argument).expectStatus(t, 0)
	if r.stdout != argument {
		t.Errorf("%q, want %q", r.stdout, argument)
	}
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

// TestCommandGetsSocketsAndWatchdogOfItsUnit: systemd passes sockets and the watchdog to the process that it has
// started. The command finds its own number in their variables, and the sockets. Variables for another process
// do not change.
func TestCommandGetsSocketsAndWatchdogOfItsUnit(t *testing.T) {
	w := withStore(t)
	const show = `run x -- sh -c 'echo "pids $$ $LISTEN_PID $WATCHDOG_PID ${LISTEN_PIDFDID-none} $LISTEN_FDS"; cat <&3'`
	for _, c := range []struct{ environment, listen, watchdog, id string }{
		{"LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_PIDFDID=7", "own", "own", "none"},
		{"LISTEN_PID=$$ WATCHDOG_PID=1 LISTEN_PIDFDID=7", "own", "1", "none"},
		{"LISTEN_PID=1 WATCHDOG_PID=$$ LISTEN_PIDFDID=7", "1", "own", "7"},
	} {
		p := w.startCmd(shell(`echo three >f; export `+c.environment+` LISTEN_FDS=1; exec "$0" `+show+` 3<f`), nil)
		words := strings.Fields(p.stdout.expect("pids "))[1:]
		for i, want := range []string{c.listen, c.watchdog, c.id, "1"} {
			if want == "own" {
				want = words[0]
			}
			if words[i+1] != want {
				t.Errorf("%s: the command has %v", c.environment, words)
			}
		}
		p.stdout.expect("three")
	}
}

// TestEachHolderHasItsSlot: three holders of one name have three different slots.
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
