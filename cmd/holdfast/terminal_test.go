//go:build linux || darwin

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// onTerminal starts a command as the leader of a session with a terminal of its own.
func (w *sandbox) onTerminal(c *exec.Cmd) *process {
	w.t.Helper()
	p := &process{t: w.t, cmd: c}
	c.Env = append(slices.Clone(w.env), "PS1=prompt$ ", "holdfast="+binary, roleEnv+"="+roleCommand, "testbinary="+testBinary)
	c.Dir = w.dir
	tty, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 200})
	must(w.t, err)
	p.stdin, p.stdout = tty, readLines(w.t, "terminal", tty)
	p.wait = sync.OnceValue(c.Wait)
	w.t.Cleanup(func() {
		_ = c.Process.Kill() // the end of the session's leader sends HUP to the processes in the foreground
		_ = p.wait()
		tty.Close()
	})
	return p
}

// atPrompt sends a line to the shell, when it has printed its prompt.
func (p *process) atPrompt(line string) {
	p.t.Helper()
	p.stdout.expectPart("prompt$ ")
	p.send(line)
}

// key presses a key that the terminal turns into a signal.
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

// TestInteractiveCommandReadsTerminal: an interactive command reads from the terminal. When it has ended, the
// shell that ran holdfast reads from the terminal again.
func TestInteractiveCommandReadsTerminal(t *testing.T) {
	w := withStore(t)
	// If the inner shell were not in the foreground, its read would stop it or return an error.
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
	p.expectStatus(0)
}

// TestInteractiveCommandNeedsNoShell: holdfast is the session's first process. An interactive command
// still reads from the terminal.
func TestInteractiveCommandNeedsNoShell(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", "sh"))
	p.send("stty -echo; echo sum $((20 + 4))")
	p.stdout.expect("sum 24")
	p.send("exit 8")
	p.expectStatus(8)
}

// TestCommandStartsInForeground: the command is in the terminal's foreground from its first
// instruction. It starts with no more ignored signals than run had.
func TestCommandStartsInForeground(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this system has no /proc")
	}
	w := withStore(t)
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", "sh", "-c",
		`read pid name state parent group session tty foreground rest </proc/$$/stat
		[ $group = $foreground ] && echo "starts in the foreground"
		grep SigIgn /proc/$$/status`))
	p.stdout.expect("starts in the foreground")
	own, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(own), "SigIgn:")
	before := hex(t, strings.Fields(rest)[0]) // the ignored signals with which this test was started
	if got := strings.Fields(p.stdout.expect("SigIgn:")); hex(t, got[1])&^before != 0 {
		t.Errorf("ignored signals: %v, before: %x", got, before)
	}
}

func hex(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 16, 64)
	must(t, err)
	return n
}

// TestPipedCommandOpensTerminal: the command's input is a pipe. The command opens the terminal by name.
func TestPipedCommandOpensTerminal(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-c",
		`stty -echo; echo piped | "$holdfast" run x -- sh -c 'read a; read b </dev/tty; echo "got $a $b"'; read line; echo "outer $line"`))
	p.send("typed")
	p.stdout.expect("got piped typed")
	p.send("back")
	p.stdout.expect("outer back")
}

// TestInterruptKeyReachesCommandOnce: Ctrl-C reaches the command once, and no other process.
func TestInterruptKeyReachesCommandOnce(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-c", `stty -echo; "$holdfast" run x -- "$testbinary"; echo "status $?"`))
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

// TestStopKeyStopsJob: Ctrl-Z stops the shell's job, and fg continues it.
func TestStopKeyStopsJob(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-i"))
	p.atPrompt(`stty -echo; "$holdfast" run x -- "$testbinary"; echo "status $?"`)
	p.ready()
	for range 2 {
		p.key(ctrlZ)
		p.atPrompt("jobs")
		p.stdout.expect("Stopped")
		p.send("fg")
		p.stdout.expect("signal continued")
		p.send("say again")
		p.stdout.expect("said again")
	}
	p.key(ctrlZ)
	p.stdout.expectPart("prompt$ ")
	// In the background the job continues. It stops again, because it reads from the terminal.
	p.send("bg")
	p.stdout.expect("[1]")
	for stopped := false; !stopped; {
		p.send("jobs")
		stopped = strings.Contains(p.stdout.expect("[1]"), "Stopped")
	}
	p.send("fg")
	p.stdout.expect("signal continued")
	p.send("exit 5")
	p.atPrompt(`echo "last $?"`)
	p.stdout.expect("last 5")
	p.send("exit")
	p.status()
}

// TestStopKeyNeedsJobControl: Ctrl-Z stops the command in a session without job control. No process
// could continue a stopped run, so run continues the command.
func TestStopKeyNeedsJobControl(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", testBinary))
	p.ready()
	p.key(ctrlZ)
	p.stdout.expect("signal continued")
	p.send("say on")
	p.stdout.expect("said on")
	p.send("exit 4")
	p.expectStatus(4)
}

// TestStopKeyStopsPipedCommand: the command is not in the terminal's foreground. Ctrl-Z still stops
// the command before run stops.
func TestStopKeyStopsPipedCommand(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this system has no /proc")
	}
	w := withStore(t)
	must(t, syscall.Mkfifo(w.path("in"), 0o600))
	in, err := os.OpenFile(w.path("in"), os.O_RDWR, 0)
	must(t, err)
	defer in.Close()
	p := w.onTerminal(exec.Command("sh", "-i"))
	p.atPrompt(`stty -echo; "$holdfast" run x -- "$testbinary" <in`)
	pid := p.ready()
	p.key(ctrlZ)
	p.stdout.expectPart("prompt$ ")
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || !strings.Contains(string(stat), ") T ") {
		t.Errorf("the command is not stopped: %s (%v)", stat, err)
	}
	p.send("fg")
	p.stdout.expect("signal continued")
	fmt.Fprintln(in, "exit 3")
	p.atPrompt(`echo "last $?"; exit`)
	p.stdout.expect("last 3")
	p.status()
}

// TestStoppedJobKeepsLockBeyondTTL: a job that is stopped for longer than its TTL keeps its lock, and
// continues with it.
func TestStoppedJobKeepsLockBeyondTTL(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-i"))
	p.atPrompt(`stty -echo; ` + roleEnv + `=` + roleScripted + ` "$testbinary" run --store scripted://works --ttl 4s --grace 50ms x -- ` +
		`env ` + roleEnv + `=` + roleCommand + ` "$testbinary"`)
	p.ready()
	p.key(ctrlZ)
	p.stdout.expectPart("prompt$ ")
	// The test waits at least until the lease would have expired without a renewal.
	w.run("run", "y", "--", "sleep", "8").expectStatus(t, 0)
	p.send("fg")
	p.stdout.expect("signal continued")
	p.send("exit 3")
	p.atPrompt(`echo "last $?"; exit`)
	p.stdout.expect("last 3")
	p.status()
}

// TestJobStoppedInQueueStartsNoCommand: a job that is stopped while it waits starts no command until it is
// continued.
func TestJobStoppedInQueueStartsNoCommand(t *testing.T) {
	w := withStore(t)
	holder := w.hold("--reason", "another", "x")
	p := w.onTerminal(exec.Command("sh", "-i"))
	p.atPrompt(`stty -echo; "$holdfast" run x -- sh -c 'touch ran; echo "mine $((6 * 7))"; exit 7'`)
	p.stdout.expectPart("(another)")
	p.key(ctrlZ)
	p.atPrompt("jobs")
	p.stdout.expect("Stopped")
	// The stopped job has no queue entry.
	awaitQueue(t, w.locker(), 0)
	holder.send("exit 0")
	holder.status()
	w.run("run", "--try", "x", "--", "test", "!", "-e", "ran").expectStatus(t, 0)
	p.send("fg")
	p.stdout.expect("mine 42")
	p.atPrompt(`echo "last $?"; exit`)
	p.stdout.expect("last 7")
	p.status()
}

// TestKilledStoppedJobLeavesNoQueueEntry: a job that was stopped while it waited, and then killed, leaves no
// queue entry.
func TestKilledStoppedJobLeavesNoQueueEntry(t *testing.T) {
	w := withStore(t)
	holder := w.hold("--reason", "another", "x")
	p := w.onTerminal(exec.Command("sh", "-i"))
	p.atPrompt(`stty -echo; "$holdfast" run x -- touch ran`)
	p.stdout.expectPart("(another)")
	p.key(ctrlZ)
	p.stdout.expectPart("prompt$ ")
	l := w.locker()
	awaitQueue(t, l, 0)
	p.send("bg")
	awaitQueue(t, l, 1)
	p.send("kill -STOP %1; kill -KILL %1")
	awaitQueue(t, l, 0)
	holder.send("exit 0")
	holder.status()
	w.run("run", "--try", "x", "--", "test", "!", "-e", "ran").expectStatus(t, 0)
}

// TestKillReturnsTerminalToShell: the front or the guardian is killed. The shell gets the terminal back
// with its former modes, and no process of the command is left. If the front is killed, a shell with
// job control takes the terminal back itself, and run leaves the modes to it.
func TestKillReturnsTerminalToShell(t *testing.T) {
	for _, jobs := range []string{"sh -i", "sh"} {
		for _, killed := range []string{"front", "guardian"} {
			t.Run(jobs+", "+killed, func(t *testing.T) {
				w := withStore(t)
				c := exec.Command("sh", "-i")
				if jobs == "sh" { // no job control: only run can give the terminal back to this shell
					c = exec.Command("sh", "-c", `while :; do printf "prompt$ "; until read line; do :; done; eval "$line"; done`)
				}
				p := w.onTerminal(c)
				p.atPrompt(`stty -echo; "$holdfast" run --grace 100ms x -- sh -c 'stty raw; exec "$testbinary"'`)
				pid := p.ready()
				guardian := parentPID(t, pid)
				victim := guardian
				if killed == "front" {
					victim = parentPID(t, guardian)
				}
				must(t, syscall.Kill(victim, syscall.SIGKILL))
				p.stdout.expectPart("prompt$ ")
				awaitState(t, pid, "")
				awaitState(t, guardian, "")
				if jobs == "sh -i" && killed == "front" {
					p.send("stty sane -echo") // this shell took the terminal back itself, so run restored no modes
					p.stdout.expectPart("prompt$ ")
				}
				p.send(`read a; echo "typed $a"`)
				p.send("something")
				p.stdout.expect("typed something")
				p.send("stty -a; exit")
				p.stdout.expect(" icanon")
				p.status()
			})
		}
	}
}

func parentPID(t *testing.T, pid int) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "ppid=", "-p", strconv.Itoa(pid)).Output()
	must(t, err)
	return int(number(t, strings.TrimSpace(string(out))))
}

// TestRunRestoresTerminalModes: run restores the terminal's modes after a command that was killed before
// it could restore them.
func TestRunRestoresTerminalModes(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command("sh", "-c",
		`stty -echo; "$holdfast" run x -- sh -c 'stty raw; kill -KILL $$'; echo "status $?"; stty -a`))
	p.stdout.expect("status 137")
	if got := p.stdout.all(); !strings.Contains(got, " icanon") {
		t.Errorf("modes:\n%s", got)
	}
}

// TestWaitingRunShowsHolderOnTerminal: on a terminal, a waiting run shows the holder.
func TestWaitingRunShowsHolderOnTerminal(t *testing.T) {
	w := withStore(t)
	holder := w.hold("--reason", "the nightly job", "x")
	p := w.onTerminal(exec.Command(binary, "run", "x", "--", "sh", "-c", `echo "mine $HOLDFAST_TOKEN"`))
	p.stdout.expectPart(`waiting for "x" for 0s, held by pid `)
	p.stdout.expectPart("(the nightly job)")
	holder.send("exit 0")
	p.stdout.expect("mine ")
	p.expectStatus(0)

	// Without a terminal, run prints nothing unless --verbose is given.
	holder = w.hold("x")
	quiet := w.start("run", "x", "--", "true")
	awaitQueue(t, w.locker(), 1)
	holder.send("exit 0")
	if quiet.status(); quiet.stderr.all() != "" {
		t.Errorf("stderr: %q", quiet.stderr.all())
	}
}
