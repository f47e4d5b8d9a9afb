package main_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestHoldRefusesProcessThatItCannotEnd: no signal of a guardian reaches the first process of its own PID
// namespace, or a process of another user. hold refuses both, and an ended process, before it opens the store.
func TestHoldRefusesProcessThatItCannotEnd(t *testing.T) {
	refused := func(t *testing.T, w *sandbox, c *exec.Cmd, reason string) {
		t.Helper()
		p := w.startCmd(c, nil)
		p.expectStatus(64)
		p.stderr.expect(reason)
		if strings.Contains(p.stdout.all(), "unlocked") {
			t.Error("the script continues")
		}
		if _, err := os.Stat(w.path("locks")); !os.IsNotExist(err) {
			t.Errorf("the store was opened: %v", err)
		}
	}
	t.Run("the first process of a namespace", func(t *testing.T) {
		refused(t, withStore(t), firstShell(t, `eval "$("$0" hold --pid $$ x)"; echo unlocked`), "use holdfast run")
	})
	t.Run("another user's", func(t *testing.T) {
		w := withStore(t)
		c := exec.Command(binary, "hold", "--pid", strconv.Itoa(os.Getpid()), "x")
		c.SysProcAttr = w.nobody()
		refused(t, w, c, "use holdfast run")
	})
	t.Run("ended", func(t *testing.T) {
		ended := exec.Command("true")
		must(t, ended.Start())
		defer func() { _ = ended.Wait() }()
		awaitState(t, ended.Process.Pid, "Z")
		refused(t, withStore(t), exec.Command(binary, "hold", "--pid", strconv.Itoa(ended.Process.Pid), "x"), "there is no such process")
	})
}

// TestHoldEndsFirstProcessOfInnerNamespace: signals from outside reach the first process of a PID namespace.
func TestHoldEndsFirstProcessOfInnerNamespace(t *testing.T) {
	w := withStore(t)
	p := w.startCmd(firstShell(t, "echo ready; read line; echo continued"), nil)
	p.stdout.expect("ready")
	first := childPID(t, p.cmd.Process.Pid)
	w.start("hold", "--grace", "50ms", "--pid", strconv.Itoa(first), "x").expectStatus(0)
	w.run("break", "--token", w.tokenOf(), "x").expectStatus(t, 0)
	if out := p.stdout.all(); strings.Contains(out, "continued") {
		t.Errorf("output: %q", out)
	}
	w.awaitFree()
}

// TestHoldEndsShellBesideProcOfAnotherNamespace: /proc lists the processes of an outer PID namespace, without
// the number that the shell of --pid has in its own. The guardian ends the shell.
func TestHoldEndsShellBesideProcOfAnotherNamespace(t *testing.T) {
	asFirst(t)
	w := withStore(t)
	p := w.startCmd(exec.Command("unshare", "--pid", "--fork", "sh", "-c", `
		number=20000
		while [ -e /proc/$number ]; do number=$((number + 1)); done
		echo $((number - 1)) >/proc/sys/kernel/ns_last_pid
		sh -c '
			eval "$("$0" hold --grace 1h --pid $$ x)"
			trap "echo signalled; exit 6" TERM
			echo ready
			while :; do read line || exit 7; done' "$0"
		exit $?`, binary), nil)
	p.stdout.expect("ready")
	w.run("break", "--token", w.tokenOf(), "x").expectStatus(t, 0)
	p.stdout.expect("signalled")
	p.expectStatus(6)
}

// TestHoldForParentRefusesShellOfSubstitution: a shell that runs more than hold in $( ) has a process of its own for
// that, which ends at once. hold refuses it.
func TestHoldForParentRefusesShellOfSubstitution(t *testing.T) {
	w := withStore(t)
	r := w.finish(shell(`lock=$("$0" hold --pid parent x; true); eval "$lock"; echo unlocked`), nil, "").expectStatus(t, 64)
	if r.stdout != "" {
		t.Errorf("output: %q", r.stdout)
	}
	contains(t, r.stderr, "alone in $( )")
}
