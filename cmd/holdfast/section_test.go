//go:build linux || darwin

package main_test

import (
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
	p = w.startCmd(exec.Command("sh", "-c", `lock=$("$0" hold --grace 1s --pid $$ x) || exit
eval "$lock"
echo "holds $HOLDFAST_NAME $HOLDFAST_TOKEN $HOLDFAST_GUARDIAN"
`+rest, binary), nil)
	f := strings.Fields(p.stdout.expect("holds x "))
	guardian, err := strconv.Atoi(f[3])
	if err != nil {
		w.t.Fatal(err)
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
			if got := p.status(); got != 5 {
				t.Errorf("status %d, want 5", got)
			}
			w.awaitFree()
		},
		"the shell is killed": func(t *testing.T, w *sandbox) {
			p, _ := w.section("read line")
			p.signal(syscall.SIGKILL)
			w.awaitFree()
		},
		"the guardian gets SIGTERM": func(t *testing.T, w *sandbox) {
			p, guardian := w.section(`read line; "$0" run x -- true; unset HOLDFAST_HELD HOLDFAST_NAME; "$0" run x -- true`)
			if err := syscall.Kill(guardian, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			w.awaitFree()
			p.send("go on")
			if got := p.status(); got != 0 {
				t.Errorf("status %d, want 0: %s", got, p.stderr.all())
			}
			p.stderr.expect("outer")
		},
		"the lock is broken": func(t *testing.T, w *sandbox) {
			p, _ := w.section("trap 'echo signalled; exit 6' TERM; echo ready; while :; do read line || exit 7; done")
			p.stdout.expect("ready")
			w.run("break", "--token", w.tokenOf(), "x").expectStatus(t, 0)
			p.stdout.expect("signalled")
			if got := p.status(); got != 6 {
				t.Errorf("status %d, want 6", got)
			}
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
