//go:build linux || darwin

package main_test

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
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
	r := w.run("break", "--token", w.tokenOf(), "x")
	r.expectStatus(t, 0)
	for _, s := range []string{pid, "(the nightly job) is notified", "30s", "is taken away from " + pid} {
		if !strings.Contains(r.stderr, s) {
			t.Errorf("no %q:\n%s", s, r.stderr)
		}
	}
	holder.stdout.expect("signal " + syscall.SIGTERM.String())
	if got := holder.status(); got != 74 {
		t.Errorf("the holder's status is %d, want 74", got)
	}
	holder.stderr.expect("(taken")
	waiter.stdout.expect("mine")
	if got := waiter.status(); got != 0 {
		t.Errorf("the waiter's status is %d", got)
	}
}

// TestBreakWithStaleTokenBreaksNothing requires that break refuses the token of an earlier grant, and
// other wrong tokens.
func TestBreakWithStaleTokenBreaksNothing(t *testing.T) {
	w := withStore(t)
	before := w.start(append([]string{"run", "x"}, asTestCommand()...)...)
	before.ready()
	stale := w.tokenOf()
	before.send("exit 0")
	before.status()
	r := w.run("break", "--token", stale, "x")
	r.expectStatus(t, 75)
	if !strings.Contains(r.stderr, "not broken") || !strings.Contains(r.stderr, "it is free now") {
		t.Errorf("stderr: %s", r.stderr)
	}

	holder := w.start(append([]string{"run", "--reason", "the next", "x"}, asTestCommand()...)...)
	holder.ready()
	now := w.tokenOf()
	for _, wrong := range []string{stale, "1", "9223372036854775807"} {
		r := w.run("break", "--token", wrong, "x")
		r.expectStatus(t, 75)
		for _, s := range []string{"has token " + wrong, "with token " + now, "(the next)"} {
			if !strings.Contains(r.stderr, s) {
				t.Errorf("no %q:\n%s", s, r.stderr)
			}
		}
	}
	holder.send("exit 0")
	if got := holder.status(); got != 0 {
		t.Errorf("the holder's status is %d: %s", got, holder.stderr.all())
	}
}

// TestBreakReportsHolderThatContinues: break reports a holder that does not end within --wait, and
// a stopped holder.
func TestBreakReportsHolderThatContinues(t *testing.T) {
	w := withStore(t)
	holder := w.start(append([]string{"run", "--ttl", "3h", "--grace", "1h", "x"}, asTestCommand()...)...)
	holder.ready()
	token, pid := w.tokenOf(), holder.guardian()

	r := w.run("break", "--force", "--token", token, "x")
	r.expectStatus(t, 78)
	if !strings.Contains(r.stderr, "--force: the file store cannot") || !strings.Contains(r.stderr, "the store notifies the holder") {
		t.Errorf("stderr: %s", r.stderr)
	}
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
	r = w.run("break", "--wait", "20ms", "--token", token, "x")
	r.expectStatus(t, 75)
	if want := fmt.Sprintf("not broken: pid %d on ", pid); !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "it runs") {
		t.Errorf("stderr: %s", r.stderr)
	}

	holder.stopGuardian()
	r = w.run("break", "--wait", "20ms", "--token", token, "x")
	r.expectStatus(t, 75)
	if want := fmt.Sprintf("it is stopped: continue it (kill -CONT %d) or kill it", pid); !strings.Contains(r.stderr, want) {
		t.Errorf("stderr: %s", r.stderr)
	}
	// A signal ends the wait.
	breaker.stderr.expect("is notified")
	breaker.signal(syscall.SIGINT)
	if got := breaker.status(); got != 130 {
		t.Errorf("status %d, want 130: %s", got, breaker.stderr.all())
	}
	holder.continueGuardian()
	holder.send("exit 0")
	if got := holder.status(); got != 74 {
		t.Errorf("the holder's status is %d, want 74", got)
	}
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
		if got := p.status(); got != 75 {
			t.Errorf("%q: status %d, want 75", answer, got)
		}
		p.stdout.expect("not broken")
	}
	p := w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("[y/N] ")
	p.key(ctrlC)
	if got := p.status(); got != 130 {
		t.Errorf("Ctrl-C: status %d, want 130", got)
	}
	// Break reads the terminal although standard input is a pipe.
	p = w.onTerminal(exec.Command("sh", "-c", `echo y | "$holdfast" break x; echo "status $?"`))
	p.stdout.expectPart("[y/N] ")
	p.send("no")
	p.stdout.expect("status 75")

	p = w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("[y/N] ")
	p.send("y")
	p.stdout.expect("is taken away")
	if got := p.status(); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
	if got := holder.status(); got != 74 {
		t.Errorf("the holder's status is %d, want 74", got)
	}
	p = w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expect("is free")
	if got := p.status(); got != 75 {
		t.Errorf("free: status %d, want 75", got)
	}
}

// TestBreakOfSeveralHoldersRequestsToken: a lock has two holders. Break requests a token, and ends
// only the grant with that token.
func TestBreakOfSeveralHoldersRequestsToken(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	kept, err := l.Lock(t.Context(), "x", holdfast.Shared())
	if err != nil {
		t.Fatal(err)
	}
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
	if got := p.status(); got != 75 {
		t.Errorf("status %d, want 75", got)
	}
	p = w.onTerminal(exec.Command(binary, "break", "x"))
	p.stdout.expectPart("Give its token: ")
	p.send(strconv.FormatUint(st.Holders[1].Token, 10))
	if got := p.status(); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
	if got := taken.status(); got != 74 {
		t.Errorf("the holder's status is %d, want 74", got)
	}
	if err := kept.Context().Err(); err != nil {
		t.Errorf("the other grant has ended: %v", err)
	}
}
