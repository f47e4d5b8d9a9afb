//go:build linux || darwin

package main_test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// tokenOf returns the token that show prints for the first holder of x.
func (w *sandbox) tokenOf() string {
	w.t.Helper()
	var got listed
	decode(w.t, w.run("show", "--json", "x"), &got)
	if len(got.Holders) == 0 {
		w.t.Fatal("no process holds x")
	}
	return got.Holders[0].Token
}

// TestBreakEndsCommandAndGrantsWaiter breaks the lock of holdfast run. Its command gets a signal,
// and the next waiter gets the lock.
func TestBreakEndsCommandAndGrantsWaiter(t *testing.T) {
	w := withStore(t)
	holder := w.start(append([]string{"run", "--reason", "the nightly job", "x"}, asTestCommand("exit-on-term")...)...)
	holder.ready()
	waiter := w.start("run", "x", "--", "echo", "mine")
	awaitQueue(t, w.locker(), 1)
	pid := fmt.Sprintf("pid %d on ", holder.guardian())
	r := w.run("break", "--token", w.tokenOf(), "x").expectStatus(t, 0)
	contains(t, r.stderr, pid, "(the nightly job) is notified", "30s", "is taken away from "+pid)
	holder.stdout.expect("signal " + syscall.SIGTERM.String())
	holder.expectStatus(74)
	holder.stderr.expect("(taken")
	waiter.stdout.expect("mine")
	waiter.expectStatus(0)
}

// TestBreakWithStaleTokenBreaksNothing requires that break refuses the token of an earlier grant, and
// other wrong tokens.
func TestBreakWithStaleTokenBreaksNothing(t *testing.T) {
	w := withStore(t)
	before := w.hold("x")
	stale := w.tokenOf()
	before.send("exit 0")
	before.status()
	r := w.run("break", "--token", stale, "x").expectStatus(t, 75)
	contains(t, r.stderr, "not broken", "it is free now")

	holder := w.hold("--reason", "the next", "x")
	now := w.tokenOf()
	for _, wrong := range []string{stale, "1", "9223372036854775807"} {
		r := w.run("break", "--token", wrong, "x").expectStatus(t, 75)
		contains(t, r.stderr, "has token "+wrong, "with token "+now, "(the next)")
	}
	holder.send("exit 0")
	holder.expectStatus(0)
}

// TestBreakReportsHolderThatContinues: break reports a holder that does not end within --wait, and
// a stopped holder.
func TestBreakReportsHolderThatContinues(t *testing.T) {
	w := withStore(t)
	holder := w.hold("--ttl", "3h", "--grace", "1h", "x")
	token, pid := w.tokenOf(), holder.guardian()

	r := w.run("break", "--force", "--token", token, "x").expectStatus(t, 78)
	contains(t, r.stderr, "--force: the file store cannot", "the store notifies the holder")
	if r := w.run("show", "x"); strings.Contains(r.stdout, "end requested") {
		t.Errorf("--force has notified the holder:\n%s", r.stdout)
	}

	breaker := w.start("break", "--wait", "1h", "--token", token, "x")
	for began := time.Now(); !strings.Contains(w.run("show", "x").stdout, "note   end requested"); {
		if time.Since(began) > waitLimit() {
			t.Fatal("show prints no note")
		}
	}
	// The wait of this second break may end before break has sent its request.
	r = w.run("break", "--wait", "20ms", "--token", token, "x").expectStatus(t, 75)
	if want := fmt.Sprintf("not broken: pid %d on ", pid); !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "it runs") {
		t.Errorf("stderr: %s", r.stderr)
	}

	holder.stopGuardian()
	r = w.run("break", "--wait", "20ms", "--token", token, "x").expectStatus(t, 75)
	if want := fmt.Sprintf("it is stopped: continue it (kill -CONT %d) or kill it", pid); !strings.Contains(r.stderr, want) {
		t.Errorf("stderr: %s", r.stderr)
	}
	// A signal ends the wait.
	breaker.stderr.expect("is notified")
	breaker.signal(syscall.SIGINT)
	breaker.expectStatus(130)
	holder.continueGuardian()
	holder.send("exit 0")
	holder.expectStatus(74)
}

// TestBreakRequestsConfirmation: on a terminal, break requests a confirmation. Without the
// confirmation it changes nothing.
func TestBreakRequestsConfirmation(t *testing.T) {
	w := withStore(t)
	holder := w.start(append([]string{"run", "--reason", "the nightly job", "x"}, asTestCommand("exit-on-term")...)...)
	holder.ready()
	for _, answer := range []string{"n", "", "what?"} {
		p := w.onTerminal(exec.Command(binary, "break", "x"))
		p.stdout.expect("(the nightly job)")
		p.stdout.expectPart("Take it away? [y/N] ")
		p.send(answer)
		p.expectStatus(75)
		p.stdout.expect("not broken")
	}
	p := w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("[y/N] ")
	p.key(ctrlC)
	p.expectStatus(130)
	// Break reads the terminal although standard input is a pipe.
	p = w.onTerminal(exec.Command("sh", "-c", `echo y | "$holdfast" break x; echo "status $?"`))
	p.stdout.expectPart("[y/N] ")
	p.send("no")
	p.stdout.expect("status 75")

	p = w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("[y/N] ")
	p.send("y")
	p.stdout.expect("is taken away")
	p.expectStatus(0)
	holder.expectStatus(74)
	p = w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expect("is free")
	p.expectStatus(75)
}

// TestBreakTakesHostileNameAlone: break prints each name escaped on the terminal, and takes away that lock and no other.
func TestBreakTakesHostileNameAlone(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	names := append([]string{"a", "b", "bdo"}, hostileNames...)
	lost := make(chan string, len(names))
	for _, name := range names {
		k, err := l.Lock(t.Context(), name)
		must(t, err)
		context.AfterFunc(k.Context(), func() {
			lost <- name
			_ = k.Unlock()
		})
	}
	for _, name := range hostileNames {
		p := w.onTerminal(exec.Command(binary, "break", "--", name))
		p.stdout.expectPart("[y/N] ")
		p.send("y")
		p.expectStatus(0)
		if got := <-lost; got != name {
			t.Errorf("%q was taken away instead of %q", got, name)
		}
		for line := range strings.Lines(p.stdout.all()) {
			if !printable.Safe(strings.TrimRight(line, "\r\n")) {
				t.Errorf("%q: the terminal got %q", name, line)
			}
		}
	}
	select {
	case name := <-lost:
		t.Errorf("%q was taken away, too", name)
	default:
	}
}

// TestBreakOfSeveralHoldersRequestsToken: a lock has two holders. Break requests a token, and ends
// only the grant with that token.
func TestBreakOfSeveralHoldersRequestsToken(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	kept := mustLock(t, l, "x", holdfast.Shared())
	taken := w.start(append([]string{"run", "--shared", "x"}, asTestCommand("exit-on-term")...)...)
	taken.ready()
	st, err := l.Inspect(t.Context(), "x")
	if err != nil || len(st.Holders) != 2 {
		t.Fatal(st, err)
	}
	p := w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("Give its token: ")
	p.send("y")
	p.stdout.expect("not broken")
	p.expectStatus(75)
	p = w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("Give its token: ")
	p.send(strconv.FormatUint(st.Holders[1].Token, 10))
	p.expectStatus(0)
	taken.expectStatus(74)
	if err := kept.Context().Err(); err != nil {
		t.Errorf("the other grant has ended: %v", err)
	}
}
