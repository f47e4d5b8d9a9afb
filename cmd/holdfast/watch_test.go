//go:build linux || darwin

package main_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/holdfast-go/holdfast"
)

// TestWatchFollowsLock requires that watch prints every event of a lock.
func TestWatchFollowsLock(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	p := w.start("watch", "x")
	expect := func(words ...string) {
		t.Helper()
		line := p.stdout.expect("\tx\t")
		if f := strings.Split(line, "\t"); len(f) != 9 || f[2] != words[0] || len(words) > 1 && f[7] != words[1] {
			t.Errorf("%q, want %q", line, words)
		}
	}
	expect("free")
	ctx, cancel := context.WithCancel(t.Context())
	lock, err := l.Lock(ctx, "x", holdfast.Reason("first"))
	must(t, err)
	expect("granted", "first")
	second := w.start(append([]string{"run", "--reason", "second", "x"}, asTestCommand("exit-on-term")...)...)
	expect("waiting", "second")
	must(t, lock.Unlock())
	expect("released", "first")
	expect("granted", "second")
	second.ready()
	third := w.start("run", "--reason", "third", "x", "--", "true")
	expect("waiting", "third")
	third.signal(syscall.SIGTERM)
	expect("left", "third")
	second.stopGuardian()
	if line := p.stdout.expect("\tnoted\t"); !strings.HasSuffix(line, "\tstopped") {
		t.Errorf("%q", line)
	}
	second.continueGuardian()
	second.send("exit 0")
	p.stdout.expect("\treleased\t")
	cancel()
	p.signal(syscall.SIGINT)
	p.expectStatus(130)
	if got := p.stderr.all(); got != "" {
		t.Errorf("stderr: %q", got)
	}
}

// TestClosedReaderEndsOutput: the reader of a subcommand's output closes it. The subcommand ends,
// also while no lock changes. Its status is the one that a shell reports for SIGPIPE.
func TestClosedReaderEndsOutput(t *testing.T) {
	w := withStore(t)
	mustLock(t, w.locker(), "x")
	for _, args := range [][]string{{"watch"}, {"watch", "x"}, {"watch", "--json"}} {
		p := w.startCmd(exec.Command("sh", append([]string{"-c",
			`{ { "$0" "$@"; echo "status $?" >&3; } | head -n 1; } 3>&1`, binary}, args...)...), nil)
		p.stdout.expect("held")
		p.stdout.expect("status 141")
		p.status()
		if got := p.stderr.all(); got != "" {
			t.Errorf("%q: stderr: %q", args, got)
		}
	}
	// The reader has closed the output before the subcommand writes anything.
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"show", "x"}, {"show", "--json", "x"}, {"watch"}} {
		r, out, err := os.Pipe()
		must(t, err)
		r.Close()
		c := exec.Command(binary, args...)
		c.Env, c.Stdout = w.env, out
		var stderr strings.Builder
		c.Stderr = &stderr
		timer := time.AfterFunc(waitLimit(), func() { _ = c.Process.Kill() })
		_ = c.Run()
		timer.Stop()
		out.Close()
		if got := c.ProcessState.ExitCode(); got != 141 || stderr.String() != "" {
			t.Errorf("%q: status %d, want 141; stderr: %q", args, got, stderr.String())
		}
	}
}

// TestFullDiskIsNoSuccess: a subcommand cannot write its output. It ends with an error.
func TestFullDiskIsNoSuccess(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	w := withStore(t)
	for _, args := range [][]string{
		{"show", "x"}, {"show", "--json", "x"}, {"ls", "--json"}, {"watch", "x"}, {"stores"}, {"stores", "--json"}, {"stores", w.storeURL()},
		{"version"}, {"version", "--json"}, {"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}, {"lab"},
	} {
		c := exec.Command(binary, args...)
		c.Env, c.Stdout = w.env, full
		var stderr strings.Builder
		c.Stderr = &stderr
		_ = c.Run()
		if got := c.ProcessState.ExitCode(); got != 1 || !strings.Contains(stderr.String(), "no space") || strings.Contains(stderr.String(), "--help") {
			t.Errorf("%q: status %d: %q", args, got, stderr.String())
		}
	}
}

// screen runs holdfast from a shell. At the end the shell prints whether the terminal has its former
// modes.
func (w *sandbox) screen(args string) *process {
	w.t.Helper()
	return w.onTerminal(exec.Command("sh", "-c", `was=$(stty -g); "$holdfast" `+args+
		`; echo "status $?"; if [ "$was" = "$(stty -g)" ]; then echo restored; else stty -a; fi`))
}

// cells returns the words of a line on the terminal, without the sequences that move the cursor.
func cells(line string) []string {
	return strings.Fields(regexp.MustCompile(`\x1b\[[0-9;]*[A-Z]`).ReplaceAllString(line, " "))
}

const leavesScreen = "\x1b[?1049l"

// TestWatchShowsTableOnTerminal: the table follows changes of locks and of the terminal's size. At
// its end watch restores the terminal.
func TestWatchShowsTableOnTerminal(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	p := w.screen("watch x")
	p.stdout.expectPart("0 held, 0 waiting")
	lock := mustLock(t, l, "x", holdfast.Reason(strings.Repeat("a reason ", 12)))
	p.stdout.expectPart("a reason a reason")
	waiter := w.start("run", "--reason", "in line", "x", "--", "true")
	p.stdout.expectPart("waiter 1")
	// The first frame after a resize can still show the table for the former width.
	for _, columns := range []uint16{68, 67} {
		must(t, pty.Setsize(p.stdin.(*os.File), &pty.Winsize{Rows: 20, Cols: columns}))
		p.stdout.expectPart("\x1b[2J")
	}
	// The terminal is so narrow that the table has no column for the reason, even if the host's name
	// is short.
	header, row := cells(p.stdout.expect("NAME")), cells(p.stdout.expect("exclusive"))
	if want := []string{"NAME", "MODE", "TOKEN", "AGE", "HOLDER", "QUEUE"}; !slices.Equal(header, want) {
		t.Errorf("the header is %q, want %q", header, want)
	}
	if len(row) != 5 || row[1] != strconv.FormatUint(lock.Token(), 10) || row[4] != "1" {
		t.Errorf("the holder's row is %q", row)
	}
	waiter.signal(syscall.SIGTERM)
	waiter.status()
	p.key('q')
	p.stdout.expectPart(leavesScreen)
	p.stdout.expect("status 0")
	p.stdout.expect("restored")
}

// TestWatchEndsByKeyOrSignal: watch restores the terminal in each case. A dumb terminal gets lines.
func TestWatchEndsByKeyOrSignal(t *testing.T) {
	w := withStore(t)
	p := w.screen("watch")
	p.stdout.expectPart("0 held")
	p.key(ctrlC)
	p.stdout.expectPart(leavesScreen)
	p.stdout.expect("status 130")
	p.stdout.expect("restored")

	p = w.onTerminal(exec.Command(binary, "watch"))
	p.stdout.expectPart("0 held")
	p.signal(syscall.SIGTERM)
	p.stdout.expectPart(leavesScreen)
	p.expectStatus(143)

	// Standard input is not the terminal, but watch still reads the keys from the terminal.
	p = w.screen("watch </dev/null")
	p.stdout.expectPart("0 held")
	p.key('q')
	p.stdout.expect("status 0")

	// A dumb terminal gets lines.
	w.hold("x")
	c := exec.Command("env", "TERM=dumb", binary, "watch")
	p = w.onTerminal(c)
	p.stdout.expect("\theld\t")
	p.signal(syscall.SIGTERM)
	p.status()
	if got := p.stdout.all(); strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}

// TestListFitsTerminal: ls prints a table that is not wider than the terminal.
func TestListFitsTerminal(t *testing.T) {
	w := withStore(t)
	p := w.onTerminal(exec.Command(binary, "ls"))
	p.stdout.expect("nothing is held or waited for")
	mustLock(t, w.locker(), "x", holdfast.Reason(strings.Repeat("why ", 30)))
	p = w.onTerminal(exec.Command("sh", "-c", `stty cols 80; "$holdfast" ls`))
	got := p.stdout.all()
	contains(t, got, "NAME", "HOLDER", "QUEUE", "why", "…")
	for line := range strings.Lines(got) {
		if n := len([]rune(strings.TrimRight(line, "\r\n"))); n > 80 {
			t.Errorf("a line has %d characters: %q", n, line)
		}
	}
}
