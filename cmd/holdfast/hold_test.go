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

	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestMinHoldOutlivesCommand: with --min-hold, the lock is kept after the command and run have ended, without a
// process. An operator ends it early. For a command that was not started, nothing is kept.
func TestMinHoldOutlivesCommand(t *testing.T) {
	w := withStore(t)
	w.run("run", "--min-hold", "1h", "x", "--", "./no-such-file").expectStatus(t, 127)
	w.run("run", "--min-hold", "1h", "x", "--", "sh", "-c", "exit 3").expectStatus(t, 3)
	contains(t, w.run("run", "--try", "x", "--", "true").expectStatus(t, 75).stderr, "x")
	contains(t, w.run("show", "x").expectStatus(t, 0).stdout, "released, kept for a while")
	w.run("break", "--token", w.tokenOf(), "x").expectStatus(t, 0)
	w.run("run", "--try", "--min-hold", "50ms", "x", "--", "true").expectStatus(t, 0)
	w.run("run", "x", "--", "true").expectStatus(t, 0)
}

// keptByProcess returns a sandbox whose locks end with their process.
func keptByProcess(t *testing.T) *sandbox {
	t.Helper()
	if _, err := servers.Find("postgres", "/usr/lib/postgresql/*/bin/postgres"); err != nil {
		missing(t, "postgres")
	}
	server, err := servers.StartPostgres(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	s := newSandbox(t)
	s.env = append(s.env, "HOLDFAST_STORE="+server.URL("postgres", "&recipe=advisory"))
	return s
}

// TestMinHoldIsKeptByProcess: a store does not keep a released lock. So after the end of the command the guardian keeps
// it, without delaying run, or the reader of a pipe that run has inherited. A signal ends that.
func TestMinHoldIsKeptByProcess(t *testing.T) {
	s := keptByProcess(t)
	p := s.startCmd(shell(`{ "$0" run -v --min-hold 1h x -- sh -c "exit 3" 7>&1; echo "status $?"; } | cat; echo the pipe has ended`), nil)
	p.stdout.expect("status 3")
	p.stdout.expect("the pipe has ended")
	guardian := number(t, strings.Fields(p.stderr.expect("the command has ended; process "))[5])
	p.expectStatus(0)
	s.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	must(t, syscall.Kill(int(guardian), syscall.SIGTERM))
	awaitState(t, int(guardian), "")
	s.run("run", "--try", "x", "--", "true").expectStatus(t, 0)
	s.run("run", "--min-hold", "50ms", "x", "--", "true").expectStatus(t, 0)
	s.run("run", "x", "--", "true").expectStatus(t, 0)
}

// TestMinHoldIsRefusedWhereItsProcessEnds: no process can keep the lock where it ends with run, as in a unit of systemd
// and in a container.
func TestMinHoldIsRefusedWhereItsProcessEnds(t *testing.T) {
	s := keptByProcess(t)
	for script, text := range map[string]string{
		`SYSTEMD_EXEC_PID=$$ exec "$0" run --min-hold 1h x -- echo ran`:               "this unit",
		`export SYSTEMD_EXEC_PID=$$; "$0" run --min-hold 1h x -- echo ran; exit $?`:   "this unit",
		`export SYSTEMD_EXEC_PID=$$; "$0" hold --min-hold 1h --pid $$ x >&2; exit $?`: "this unit",
		strings.Join(asFirst(t), " ") + ` "$0" run --min-hold 1h x -- echo ran`:       "this container",
	} {
		r := s.finish(shell(script), nil, "").expectStatus(t, 78)
		contains(t, r.stderr, "--min-hold", text)
		if r.stdout != "" {
			t.Errorf("%s: %q", script, r.stdout)
		}
	}
	s.run("run", "--try", "x", "--", "true").expectStatus(t, 0)
	s.finish(shell(`SYSTEMD_EXEC_PID=$$ exec "$0" run --store `+s.storeURL()+` --min-hold 1h x -- true`), nil, "").expectStatus(t, 0)
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
