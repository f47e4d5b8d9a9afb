//go:build linux || darwin

package main_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// section starts a shell that runs `holdfast hold` for the lock x, and then the rest of its script. It
// returns the process number of the guardian, which holds the lock.
func (w *sandbox) section(rest string) (p *process, guardian int) {
	w.t.Helper()
	p = w.startCmd(exec.Command("sh", "-c", `export HOLDFAST_SLOT=9 # of an earlier section
lock=$("$0" hold --grace 1s --pid $$ x) || exit
eval "$lock"
echo "holds $HOLDFAST_NAME $HOLDFAST_TOKEN $HOLDFAST_GUARDIAN $HOLDFAST_SLOT"
`+rest, binary), nil)
	f := strings.Fields(p.stdout.expect("holds x "))
	guardian, err := strconv.Atoi(f[3])
	must(w.t, err)
	if len(f) != 4 {
		w.t.Errorf("%q: the section has the slot of another one", f)
	}
	st, err := w.locker().Inspect(w.t.Context(), "x")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].PID != guardian || strconv.FormatUint(st.Holders[0].Token, 10) != f[2] {
		w.t.Fatalf("%q, and %+v, %v", f, st, err)
	}
	return p, guardian
}

// awaitFree waits until x is free.
func (w *sandbox) awaitFree() {
	w.t.Helper()
	w.run("run", "--wait", waitLimit().String(), "x", "--", "true").expectStatus(w.t, 0)
}

// TestHoldLastsAsLongAsShell: the guardian releases the lock when the shell ends or is killed. SIGTERM
// to the guardian releases the lock while the shell continues. When the lock is broken, the guardian
// sends SIGTERM to the shell.
func TestHoldLastsAsLongAsShell(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, w *sandbox){
		"the script ends": func(t *testing.T, w *sandbox) {
			p, _ := w.section("read line; exit 5")
			p.send("end")
			p.expectStatus(5)
			w.awaitFree()
		},
		"the shell is killed": func(t *testing.T, w *sandbox) {
			p, _ := w.section("read line")
			p.signal(syscall.SIGKILL)
			w.awaitFree()
		},
		"the guardian gets SIGTERM": func(t *testing.T, w *sandbox) {
			p, guardian := w.section(`read line; "$0" run x -- true || exit; unset HOLDFAST_HELD; "$0" run x -- true`)
			must(t, syscall.Kill(guardian, syscall.SIGTERM))
			w.awaitFree()
			p.send("go on")
			p.expectStatus(0)
		},
		"the lock is broken": func(t *testing.T, w *sandbox) {
			p, _ := w.section("trap 'echo signalled; exit 6' TERM; echo ready; while :; do read line || exit 7; done")
			p.stdout.expect("ready")
			w.run("break", "--token", w.tokenOf(), "x").expectStatus(t, 0)
			p.stdout.expect("signalled")
			p.expectStatus(6)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, withStore(t))
		})
	}
	w := withStore(t)
	for _, args := range [][]string{{"hold", "x"}, {"hold", "--pid", "2147483647", "x"}, {"hold", "--pid", "0", "x"}} {
		w.run(args...).expectStatus(t, 64)
	}
}

// TestHoldPrintsLiteralWords: no character of a name, and nothing in a variable that the caller can set,
// runs in the shell that evaluates the output.
func TestHoldPrintsLiteralWords(t *testing.T) {
	w := withStore(t)
	name := "$(touch gone) `touch gone` '\"; touch gone; ${x} "
	for c := rune(1); c < 0x100; c++ {
		name += string(c)
	}
	for _, held := range []string{"$(touch gone)", "x; touch gone", "\n touch gone\n", "0123456789abcdef-7,$(touch gone)", name} {
		r := w.runIn([]string{"HOLDFAST_HELD=" + held}, "", "run", "outer", "--", "sh", "-c", `
			HOLDFAST_HELD="$2"
			lock=$("$0" hold --pid $$ "$1") || exit
			eval "$lock"
			printf '%s|%s' "$HOLDFAST_NAME" "$HOLDFAST_HELD"
			kill "$HOLDFAST_GUARDIAN"`, binary, name, held)
		r.expectStatus(t, 0)
		gotName, gotHeld, _ := strings.Cut(strings.TrimPrefix(r.stdout, name), "|")
		if gotName != "" || !strings.HasPrefix(r.stdout, name) {
			t.Errorf("HOLDFAST_NAME: %q", r.stdout)
		}
		if strings.Trim(gotHeld, "0123456789abcdef-,") != "" || strings.Contains(held, "abcdef-7,") != strings.HasPrefix(gotHeld, "0123456789abcdef-7,") {
			t.Errorf("HOLDFAST_HELD=%q becomes %q", held, gotHeld)
		}
		w.run("run", "--wait", waitLimit().String(), name, "--", "true").expectStatus(t, 0)
	}
	if _, err := os.Stat(w.path("gone")); err == nil {
		t.Error("the shell has run a part of the output")
	}
}

// TestFailedHoldEndsScript: a script that passes the output of hold to eval, without a check of its status,
// does not continue without the lock. An interactive shell gets the status and stays open.
func TestFailedHoldEndsScript(t *testing.T) {
	w := withStore(t)
	mustLock(t, w.locker(), "x")
	for flags, want := range map[string]int{"--try --pid $$": 75, "--pid 2147483647": 64, "--pid": 64, "--store redis:// --pid $$": 64} {
		r := w.finish(shell(`eval "$("$0" hold `+flags+` x)"; echo unlocked`), nil, "").expectStatus(t, want)
		if r.stdout != "" {
			t.Errorf("%s: %q", flags, r.stdout)
		}
	}
	r := w.finish(exec.Command("sh", "-i", "-c", `eval "$("$0" hold --try --pid $$ x)"; echo status $?`, binary), nil, "")
	if r.expectStatus(t, 0); r.stdout != "status 75\n" {
		t.Errorf("interactive: %q", r.stdout)
	}
}

// TestHoldIsNotPassedToReusedNumber: the process of --pid ends while hold waits, and another process gets its
// number. The lock is not held for the other process.
func TestHoldIsNotPassedToReusedNumber(t *testing.T) {
	w := withStore(t)
	l := w.locker()
	lock := mustLock(t, l, "x")
	// The second sleep gets the number of the first: nothing else starts in this namespace meanwhile.
	p := w.startCmd(firstShell(t, `
		sleep 1000 & first=$!
		"$0" hold --wait 1h --pid $first x >/dev/null & front=$!
		read line
		kill -9 $first; wait $first 2>/dev/null
		until [ "$second" = $first ]; do
			[ -z "$second" ] || kill -9 $second
			echo $((first - 1)) >/proc/sys/kernel/ns_last_pid
			sleep 1000 & second=$!
		done
		echo reused
		wait $front
		echo status $?
		read line`), nil)
	awaitQueue(t, l, 1)
	p.send("go on")
	p.stdout.expect("reused")
	must(t, lock.Unlock())
	p.stdout.expect("status ")
	w.awaitFree()
}

// TestHoldKeepsNoDescriptorOfScript: while the lock is held, a pipe ends and the lock of flock is released when the
// script closes its descriptors.
func TestHoldKeepsNoDescriptorOfScript(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		missing(t, "flock")
	}
	w := withStore(t)
	p := w.startCmd(shell(`mkfifo pipe
		cat pipe >copy &
		exec 3>pipe 9>outer
		flock 9
		lock=$("$0" hold --pid $$ x) || exit
		eval "$lock"
		echo text >&3
		exec 3>&- 9>&-
		wait
		flock --nonblock outer cat copy
		read line`), nil)
	p.stdout.expect("text")
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
}

// TestMinHoldOfHoldDoesNotDelayReaderOfOutput: the output of a script, with its standard error, ends when the script
// has ended. The guardian keeps the lock for the minimum hold.
func TestMinHoldOfHoldDoesNotDelayReaderOfOutput(t *testing.T) {
	s := keptByProcess(t)
	p := s.startCmd(shell(`output=$(sh -c '
		lock=$("$0" hold --min-hold 1h --pid $$ x) || exit
		eval "$lock"
		echo $HOLDFAST_GUARDIAN' "$0" 2>&1)
		echo "guardian $output"`), nil)
	guardian := number(t, strings.Fields(p.stdout.expect("guardian "))[1])
	s.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	must(t, syscall.Kill(int(guardian), syscall.SIGTERM))
	awaitState(t, int(guardian), "")
	s.run("run", "--try", "x", "--", "true").expectStatus(t, 0)
}

// TestHoldForParentEndsWithSubshell: --pid parent is the subshell that calls hold, where $$ is the number of its
// parent.
func TestHoldForParentEndsWithSubshell(t *testing.T) {
	w := withStore(t)
	p := w.startCmd(shell(`(
			lock=$("$0" hold --pid parent x) || exit
			eval "$lock"
			echo held
			read line
		)
		echo continued
		read line`), nil)
	p.stdout.expect("held")
	w.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	p.send("end the subshell")
	p.stdout.expect("continued")
	w.awaitFree()
	p.send("end the script")
	p.expectStatus(0)
}
