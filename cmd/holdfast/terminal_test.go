//go:build linux || darwin

package main_test

import (
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
)

// onTerminal starts a command as the leader of a session with a terminal of its
// own.
func (w *world) onTerminal(c *exec.Cmd) *process {
	w.t.Helper()
	p := &process{t: w.t, cmd: c}
	c.Env = append(slices.Clone(w.env), "PS1=prompt$ ", "holdfast="+binary, roleEnv+"="+roleCommand, "played="+testBinary)
	c.Dir = w.dir
	tty, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 200})
	if err != nil {
		w.t.Fatal(err)
	}
	p.stdin, p.stdout = tty, readLines(w.t, "terminal", tty)
	p.wait = sync.OnceValue(c.Wait)
	w.t.Cleanup(func() {
		_ = c.Process.Kill() // the session's end hangs up on the rest
		_ = p.wait()
		tty.Close()
	})
	return p
}

// key presses one that the terminal turns into a signal.
func (p *process) key(b byte) {
	p.t.Helper()
	if _, err := p.stdin.Write([]byte{b}); err != nil {
		p.t.Fatal(err)
	}
}

const (
	ctrlC = 3
	ctrlZ = 26
)

// TestTerminalRead: an interactive command reads, and afterwards the one that
// ran holdfast does.
func TestTerminalRead(t *testing.T) {
	w := withStore(t)
	// A shell without job control is stopped, or gets an error, if it is not in
	// the foreground.
	p := w.onTerminal(exec.Command("sh", "-c", `stty -echo; "$holdfast" run x -- sh; echo "inner $?"; read line; echo "outer $line"`))
	p.send("echo sum $((20 + 3))")
	p.stdout.expect("sum 23")
	p.send("read a; echo heard $a")
	p.send("something")
	p.stdout.expect("heard something")
	p.send("exit 7")
	p.stdout.expect("inner 7")
	p.send("back")
	p.stdout.expect("outer back")
	if got := p.status(); got != 0 {
		t.Errorf("status %d", got)
	}
}

// TestTerminalWithoutShell: holdfast is the session's first process.
func TestTerminalWithoutShell(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", "sh"))
	p.send("stty -echo; echo sum $((20 + 4))")
	p.stdout.expect("sum 24")
	p.send("exit 8")
	if got := p.status(); got != 8 {
		t.Errorf("status %d, want 8", got)
	}
}

// TestTerminalBesideInput: the command's input is something else, and it reaches
// for the terminal by name.
func TestTerminalBesideInput(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-c",
		`stty -echo; echo piped | "$holdfast" run x -- sh -c 'read a; read b </dev/tty; echo "got $a $b"'; read line; echo "outer $line"`))
	p.send("typed")
	p.stdout.expect("got piped typed")
	p.send("back")
	p.stdout.expect("outer back")
}

// TestInterruptKey reaches the command once, and nobody else.
func TestInterruptKey(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-c", `stty -echo; "$holdfast" run x -- "$played"; echo "status $?"`))
	p.ready()
	p.key(ctrlC)
	p.stdout.expect("signal interrupt")
	p.send("say next")
	p.stdout.expect("said next")
	p.send("exit 9")
	p.stdout.expect("status 9")
	if n := strings.Count(p.stdout.all(), "signal"); n != 1 {
		t.Errorf("%d signals:\n%s", n, p.stdout.all())
	}
}

// TestStopKey stops the job as its shell knows it, and fg goes on.
func TestStopKey(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-i"))
	p.stdout.expectPart("prompt$ ")
	p.send(`stty -echo; "$holdfast" run x -- "$played"; echo "status $?"`)
	p.ready()
	for range 2 {
		p.key(ctrlZ)
		p.stdout.expectPart("prompt$ ")
		p.send("jobs")
		p.stdout.expect("Stopped")
		p.send("fg")
		p.stdout.expect("signal continued")
		p.send("say again")
		p.stdout.expect("said again")
	}
	p.key(ctrlZ)
	p.stdout.expectPart("prompt$ ")
	// In the background it goes on, and stops again because it reads.
	p.send("bg")
	p.stdout.expect("[1]")
	for stopped := false; !stopped; {
		p.send("jobs")
		stopped = strings.Contains(p.stdout.expect("[1]"), "Stopped")
	}
	p.send("fg")
	p.stdout.expect("signal continued")
	p.send("exit 5")
	p.stdout.expectPart("prompt$ ")
	p.send(`echo "last $?"`)
	p.stdout.expect("last 5")
	p.send("exit")
	p.status()
}

// TestStopKeyWithoutJobControl: nobody could continue a stopped session, so the
// command is not left stopped.
func TestStopKeyWithoutJobControl(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", testBinary))
	p.ready()
	p.key(ctrlZ)
	p.stdout.expect("signal continued")
	p.send("say on")
	p.stdout.expect("said on")
	p.send("exit 4")
	if got := p.status(); got != 4 {
		t.Errorf("status %d, want 4", got)
	}
}

// TestTerminalModes are put back after a command that was killed before it could.
func TestTerminalModes(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-c",
		`stty -echo; "$holdfast" run x -- sh -c 'stty raw; kill -KILL $$'; echo "status $?"; stty -a`))
	p.stdout.expect("status 137")
	if got := p.stdout.all(); !strings.Contains(got, " icanon") {
		t.Errorf("modes:\n%s", got)
	}
}

// TestTerminalWaiting: who waits in front of one is told for whom.
func TestTerminalWaiting(t *testing.T) {
	w := withStore(t)
	holder := w.start(append([]string{"run", "--reason", "the nightly job", "x"}, played()...)...)
	holder.ready()
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", "sh", "-c", `echo "mine $HOLDFAST_TOKEN"`))
	p.stdout.expectPart(`waiting for "x" for 0s, held by pid `)
	p.stdout.expectPart("(the nightly job)")
	holder.send("exit 0")
	p.stdout.expect("mine ")
	if got := p.status(); got != 0 {
		t.Errorf("status %d", got)
	}

	// Off a terminal nothing is said unless asked for.
	holder = w.start(append([]string{"run", "x"}, played()...)...)
	holder.ready()
	quiet := w.start("run", "x", "--", "true")
	awaitQueue(t, w.locker(), 1)
	holder.send("exit 0")
	if quiet.status(); quiet.stderr.all() != "" {
		t.Errorf("stderr: %q", quiet.stderr.all())
	}
}
