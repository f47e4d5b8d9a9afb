//go:build linux

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// setuidSource is the source of a set-uid program, which runs as root whichever user starts it. The
// program ends when no process has the FIFO open for writing any more.
const setuidSource = `
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
	char c;
	if (setuid(0) != 0) return 1;
	int fd = open("hold", O_RDONLY);
	if (fd < 0) return 2;
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (read(fd, &c, 1) > 0) {}
	return 4;
}
`

const nobody = 65534

// newSetuidSandbox returns a sandbox with the set-uid program, in which an unprivileged user can run commands.
func newSetuidSandbox(t *testing.T) *processSandbox {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		missing(t, "cc")
	}
	s := newProcessSandbox(t)
	source, program := s.path("own.c"), s.path("own")
	must(t, os.WriteFile(source, []byte(setuidSource), 0o600))
	if out, err := exec.Command(cc, "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, os.Chmod(program, 0o755|os.ModeSetuid))
	s.nobody()
	return s
}

// nobody returns the attributes of a process of an unprivileged user, which may use the sandbox.
func (w *sandbox) nobody() *syscall.SysProcAttr {
	w.t.Helper()
	if os.Getuid() != 0 {
		w.t.Skip("only root can run a process as another user")
	}
	for _, path := range []string{w.dir, filepath.Dir(w.dir), filepath.Dir(binary)} {
		must(w.t, os.Chmod(path, 0o755))
	}
	must(w.t, os.Chown(w.dir, nobody, nobody))
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// asNobody starts a command as an unprivileged user.
func (s *processSandbox) asNobody(words []string, command ...string) *process {
	s.t.Helper()
	words = append(slices.Clone(words), command...)
	if words[0] == "$holdfast" {
		words[0] = binary
	}
	c := exec.Command(words[0], words[1:]...)
	c.SysProcAttr = s.nobody()
	return s.startCmd(c, nil)
}

// startSetuid starts the set-uid program under a lock as an unprivileged user, and returns when the
// program runs. It skips the test if the system does not let the program become root.
func (s *processSandbox) startSetuid(words ...string) (p *process, pid int) {
	s.t.Helper()
	p = s.asNobody(words, "./own")
	pid = p.ready()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(s.t, err)
	if !strings.Contains(string(b), "Uid:\t0\t0\t") {
		s.t.Skip("a set-uid program does not become root here")
	}
	return p, pid
}

// TestSetuidCommandKeepsLock: holdfast run has no right to end the set-uid command. It keeps the
// lock until the command ends, and prints a message.
func TestSetuidCommandKeepsLock(t *testing.T) {
	for name, c := range map[string]struct {
		flags   []string
		sig     syscall.Signal
		message string
		want    int
	}{
		"SIGTERM":  {nil, syscall.SIGTERM, "cannot send SIGTERM to the command: operation not permitted", 4},
		"SIGKILL":  {nil, syscall.SIGKILL, "(own) runs as another user and cannot be sent SIGTERM: \"x\" is kept until it ends", -1},
		"max hold": {[]string{"--max-hold", "50ms"}, 0, "(own) runs as another user and cannot be sent SIGTERM", 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSetuidSandbox(t)
			words := append([]string{"$holdfast", "run", "--grace", "50ms"}, c.flags...)
			p, pid := s.startSetuid(append(words, "x", "--")...)
			if c.sig != 0 {
				p.signal(c.sig)
			}
			p.stderr.expect(c.message)
			if name != "SIGTERM" { // in the other cases SIGKILL follows after --grace, and fails as well
				next := s.asNobody([]string{"$holdfast", "run", "--wait", "300ms", "x", "--"}, "true")
				next.expectStatus(75)
			}
			if err := syscall.Kill(pid, 0); err != nil {
				t.Fatalf("the set-uid command does not run: %v", err)
			}
			next := s.asNobody([]string{"$holdfast", "run", "x", "--"}, "sh", "-c", `test -d /proc/$0 && grep -q "^State:.[^Z]" /proc/$0/status && echo alive || echo gone`, fmt.Sprint(pid))
			s.endTestProcesses()
			next.stdout.expect("gone")
			p.expectStatus(c.want)
			if got := p.stderr.all(); strings.Count(got, "runs as another user") > 1 {
				t.Errorf("printed more than once:\n%s", got)
			}
		})
	}
}

// TestSetuidGuardianKilled: the guardian is killed. The front has no right to kill the set-uid
// command, so the command continues, and the front reports it.
func TestSetuidGuardianKilled(t *testing.T) {
	s := newSetuidSandbox(t)
	p, pid := s.startSetuid("$holdfast", "run", "x", "--")
	must(t, syscall.Kill(p.guardian(), syscall.SIGKILL))
	p.expectStatus(74)
	p.stderr.expect(fmt.Sprintf("pid %d (own) runs as another user and continues", pid))
}

// TestSetuidDescendantOfHoldContinuesAfterLoss: the guardian of hold has no right to end a set-uid descendant after a
// loss, and reports that it continues.
func TestSetuidDescendantOfHoldContinuesAfterLoss(t *testing.T) {
	s := newSetuidSandbox(t)
	p, _ := s.startSetuid("sh", "-c", `eval "$("$0" hold --grace 50ms --pid $$ x)"
		"$1" &
		read line
		"$0" break --wait 1ms --token "$HOLDFAST_TOKEN" x
		read line`, binary) // it waits for the end: the guardian does not know the orphans of a shell that has ended
	p.send("break")
	p.stderr.expect("(own) runs as another user and cannot be sent SIGTERM: it continues without the lock")
}

// runSetuid runs the set-uid situation of TestBesideFlock, and returns its result.
func runSetuid(t *testing.T, tool tool) outcome {
	t.Helper()
	s := newSetuidSandbox(t)
	p, pid := s.startSetuid(tool.hold...)
	alive := func() bool { return syscall.Kill(pid, 0) == nil }
	next := s.asNobody(tool.hold, "sh", "-c", `grep -q "^State:.[^Z]" /proc/$0/status 2>/dev/null && echo "found 1" || echo "found 0"`, fmt.Sprint(pid))
	// The store belongs to the unprivileged user and refuses root, so holdfastTool.wait cannot open it.
	if tool.name == holdfastTool.name {
		watch := s.asNobody([]string{"$holdfast", "watch", "x"})
		watch.stdout.expect("\twaiting\t")
	} else {
		tool.wait(s, next)
	}
	p.signal(syscall.SIGKILL)
	o := outcome{status: p.shellStatus()}
	if tool.name == holdfastTool.name {
		p.stderr.expect("is kept until it ends")
	}
	if tool.waits(next) && alive() {
		o.next = "waits for 1 orphaned"
	}
	s.endTestProcesses()
	found := strings.TrimSpace(next.stdout.expect("found "))
	if o.next == "" {
		o.next = map[string]string{"found 0": "nothing left", "found 1": "1 still runs"}[found]
	}
	return o
}
