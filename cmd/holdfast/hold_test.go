//go:build linux || darwin

package main_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMinHoldOutlivesCommand: with --min-hold, run keeps the lock after the command has ended. A
// signal makes run release it early.
func TestMinHoldOutlivesCommand(t *testing.T) {
	w := withStore(t)
	p := w.start("run", "-v", "--min-hold", "1h", "x", "--", "sh", "-c", "exit 3")
	p.stderr.expect("is kept for another")
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	p.signal(syscall.SIGTERM)
	p.expectStatus(3)
	p.stderr.expect("before its minimum hold")
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 0)

	// When the minimum hold has passed, run releases the lock without a signal.
	waiter := w.start("run", "-v", "--min-hold", "50ms", "x", "--", "true")
	waiter.stderr.expect("released")
	waiter.expectStatus(0)
}

// TestMaxHoldEndsCommand: after --max-hold, run ends the command with SIGTERM, and with SIGKILL if the
// command ignores SIGTERM.
func TestMaxHoldEndsCommand(t *testing.T) {
	for name, c := range map[string]struct {
		trap, grace string
		want        int
	}{
		"ends by itself": {"exit 5", "10s", 5},
		"is killed":      {"", "50ms", 137},
	} {
		t.Run(name, func(t *testing.T) {
			w := withStore(t)
			// The shell usually sets its trap before the signal arrives. If it did not, the
			// test repeats with more time.
			for maxHold := 500 * time.Millisecond; maxHold < waitLimit(); maxHold *= 2 {
				p := w.start("run", "--max-hold", maxHold.String(), "--grace", c.grace, "x", "--",
					"sh", "-c", `trap "$0" TERM; echo ready; while :; do read line; done`, c.trap)
				p.stderr.expect("maximum of " + maxHold.String())
				got := p.status()
				if !strings.Contains(p.stdout.all(), "ready") {
					continue
				}
				if got != c.want {
					t.Errorf("status %d, want %d", got, c.want)
				}
				return
			}
			t.Error("the shell is never ready")
		})
	}
}

// TestOnWantedSignalsTheCommand: when another client waits for the lock, the command gets the signal of --on-wanted
// once, and the waiter gets the lock when the command has ended.
func TestOnWantedSignalsTheCommand(t *testing.T) {
	w := withStore(t)
	p := w.start("run", "--on-wanted", "usr1", "x", "--",
		"sh", "-c", `trap "echo got USR1; exit 7" USR1; echo ready; while :; do read line; done`)
	p.stdout.expect("ready")
	w.run("run", "x", "--", "true").expectStatus(t, 0)
	p.stdout.expect("got USR1")
	p.stderr.expect(`another client waits for "x": the command gets SIGUSR1`)
	p.expectStatus(7)
}

// TestChildrenInGroupEndBeforeRelease: the command's remaining children in its group get
// SIGTERM, and end before the lock is released.
func TestChildrenInGroupEndBeforeRelease(t *testing.T) {
	for name, c := range map[string]struct{ word, grace, message string }{
		"ends on SIGTERM": {"exit-on-term", "1h", ""},
		"is killed":       {"", "2s", "left behind"},
	} {
		t.Run(name, func(t *testing.T) {
			w := withStore(t)
			// The command ends when its child is ready to outlive it.
			p := w.start(append([]string{"run", "--ttl", "3h", "--grace", c.grace, "x", "--", "sh", "-c",
				`exec 3<&0; "$@" <&3 >out & until grep -q ready out; do :; done 2>/dev/null; exit 3`, "sh"}, asTestCommand(c.word)[1:]...)...)
			p.expectStatus(3)
			out, err := os.ReadFile(w.path("out"))
			must(t, err)
			words := strings.Fields(string(out))
			if !strings.Contains(string(out), "signal "+syscall.SIGTERM.String()) {
				t.Errorf("the child got no SIGTERM: %q", out)
			}
			if err := syscall.Kill(int(number(t, words[1])), 0); err != syscall.ESRCH {
				t.Errorf("the child is still alive: %v", err)
			}
			if got := p.stderr.all(); !strings.Contains(got, c.message) || c.message == "" && got != "" {
				t.Errorf("stderr: %q", got)
			}
		})
	}
}

// TestRunAsFirstProcessReapsOrphans: as the first process of a container, run reaps the
// container's orphans and forwards signals. No process of the command outlives the lock.
func TestRunAsFirstProcessReapsOrphans(t *testing.T) {
	w := withStore(t)
	// The script checks that run reaps an orphan while the command runs. It then starts a process
	// that leaves the group with setsid. That process does not outlive the lock.
	words := asFirst(t, binary, "run", "x", "--", "sh", "-c", `
		(true &)
		until ! grep -q "^State:.Z" /proc/[0-9]*/status; do :; done 2>/dev/null
		setsid sh -c "echo daemon; exec sleep 1000" &
		trap "echo got TERM" TERM
		read line
		kill -TERM 1
		until read line; do :; done # the signal interrupts it
		until ! grep -q "^State:.Z" /proc/[0-9]*/status; do :; done 2>/dev/null
		read name </proc/1/comm
		echo "first is $name"
		exit 3`)
	p := w.startCmd(exec.Command(words[0], words[1:]...), nil)
	p.stdout.expect("daemon")
	p.send("")
	p.stdout.expect("got TERM")
	// Another process enters the container, and leaves an orphan there that is not a descendant of
	// the command.
	first := childPID(t, p.cmd.Process.Pid)
	if out, err := exec.Command("nsenter", "--pid", "--target", strconv.Itoa(first), "sh", "-c", "(true &) ; true").CombinedOutput(); err != nil {
		t.Errorf("nsenter: %v: %s", err, out)
	}
	p.send("")
	p.stdout.expect("first is holdfast")
	p.expectStatus(3)
	p.stdout.all() // returns when the last process has closed the output
}

func childPID(t *testing.T, pid int) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(pid)).Output()
	must(t, err)
	return int(number(t, strings.TrimSpace(string(out))))
}
