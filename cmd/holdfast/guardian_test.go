//go:build linux

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// processSandbox is a sandbox with a FIFO. Its test processes (see testprocess_test.go) run until
// endTestProcesses closes the FIFO.
type processSandbox struct {
	*sandbox
	mark string   // in the environment of every test process
	hold *os.File // the FIFO
}

func newProcessSandbox(t *testing.T) *processSandbox {
	t.Helper()
	s := &processSandbox{sandbox: withStore(t)}
	s.mark = filepath.Base(filepath.Dir(s.dir)) + strconv.Itoa(os.Getpid())
	must(t, syscall.Mkfifo(s.path("hold"), 0o644))
	var err error
	if s.hold, err = os.OpenFile(s.path("hold"), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.endTestProcesses)
	return s
}

// endTestProcesses ends the remaining test processes.
func (s *processSandbox) endTestProcesses() { _ = s.hold.Close() }

// testProcess returns the command line of a test process. The words select its behaviour.
func (s *processSandbox) testProcess(words ...string) []string {
	return append([]string{"env", roleEnv + "=" + roleTestProcess, markEnv + "=" + s.mark, testBinary}, words...)
}

// lister returns the command line of a lister.
func (s *processSandbox) lister() []string {
	return []string{"env", roleEnv + "=" + roleLister, testBinary, s.mark}
}

// holder starts a run whose command is a test process, under the lock x. It returns when the test process is
// ready.
func (s *processSandbox) holder(flags []string, words ...string) *process {
	s.t.Helper()
	args := append([]string{"run", "--grace", "200ms", "--ttl", "2s"}, flags...)
	p := s.start(append(append(args, "x", "--"), s.testProcess(words...)...)...)
	p.ready()
	return p
}

// next starts a waiter for x. Its command reports which other processes are alive when the
// lock is granted.
func (s *processSandbox) next() *process {
	s.t.Helper()
	p := s.start(append([]string{"run", "x", "--"}, s.lister()...)...)
	awaitQueue(s.t, s.locker(), 1)
	return p
}

// expectGrantedAlone requires that no other process was alive when the lock was granted.
func (p *process) expectGrantedAlone() {
	p.t.Helper()
	if got := p.stdout.expect("alive: "); !strings.HasPrefix(got, "alive: 0 ") {
		p.t.Errorf("processes that were alive at the grant: %s, want 0", got)
	}
}

// TestKilledFrontEndsCommandBeforeNextHolder: SIGKILL kills the front. The command ends, and only then does the next
// waiter's command begin.
func TestKilledFrontEndsCommandBeforeNextHolder(t *testing.T) {
	for _, words := range [][]string{
		{"ends"},
		{"ignores"},
		{"leaves", "ignores"},
		{"daemon", "ignores"},
		{"daemon", "closes"},
	} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			s := newProcessSandbox(t)
			p := s.holder(nil, words...)
			guardian := p.guardian()
			next := s.next()
			p.signal(syscall.SIGKILL)
			next.expectGrantedAlone()
			next.expectStatus(0)
			p.stderr.expect("has died: its command gets SIGTERM")
			awaitState(t, guardian, "")
		})
	}
}

// TestKilledWaitingFrontLeavesNoEntry: the front is killed while it waits. No queue entry is left, and no
// command starts.
func TestKilledWaitingFrontLeavesNoEntry(t *testing.T) {
	s := newProcessSandbox(t)
	p := s.holder(nil, "ends")
	waiter := s.start("run", "x", "--", "touch", "ran")
	l := s.locker()
	awaitQueue(t, l, 1)
	guardian := waiter.guardian()
	waiter.signal(syscall.SIGKILL)
	awaitQueue(t, l, 0)
	awaitState(t, guardian, "")
	waiter.stderr.expect("has died")
	p.signal(syscall.SIGTERM)
	p.expectStatus(5)
	s.run("run", "--try", "x", "--", "test", "!", "-e", "ran").expectStatus(t, 0)
}

// TestKilledGuardianEndsCommand: the guardian is killed. The front kills the command and all processes that
// the command has started, and reports that.
func TestKilledGuardianEndsCommand(t *testing.T) {
	for _, words := range [][]string{
		{"ignores"},
		{"leaves", "ignores"},
		{"daemon", "closes"},
	} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			s := newProcessSandbox(t)
			p := s.holder(nil, words...)
			if len(marked(s.mark)) == 0 {
				t.Fatal("the lister finds no process")
			}
			must(t, syscall.Kill(p.guardian(), syscall.SIGKILL))
			p.expectStatus(74)
			if alive := marked(s.mark); len(alive) > 0 {
				t.Errorf("alive: %v", alive)
			}
			p.stderr.expect("killed by SIGKILL), and the lock with it")
		})
	}
}

// TestGuardianKilledWaiting: the guardian is killed while it waits for the lock. No command runs.
func TestGuardianKilledWaiting(t *testing.T) {
	s := newProcessSandbox(t)
	s.holder(nil, "ends")
	waiter := s.start("run", "x", "--", "touch", "ran")
	l := s.locker()
	awaitQueue(t, l, 1)
	must(t, syscall.Kill(waiter.guardian(), syscall.SIGKILL))
	waiter.expectStatus(137)
	waiter.stderr.expect("the guardian")
	awaitQueue(t, l, 0)
}

// TestGuardianKilledAmongForeigners: a shell starts a job, and then executes holdfast run in its
// own process. The job does not belong to the command. It survives when the guardian is killed.
func TestGuardianKilledAmongForeigners(t *testing.T) {
	s := newProcessSandbox(t)
	p := s.startCmd(exec.Command("sh", append([]string{"-c", `sh -c 'trap "exit 0" USR1; echo foreign $$; while :; do sleep 1; done' </dev/null &
		exec "$@"`, "sh", binary, "run", "x", "--"}, s.testProcess("ignores")...)...), nil)
	foreign := int(number(t, strings.Fields(p.stdout.expect("foreign "))[1]))
	p.ready()
	must(t, syscall.Kill(p.guardian(), syscall.SIGKILL))
	p.expectStatus(74)
	if err := syscall.Kill(foreign, syscall.SIGUSR1); err != nil {
		t.Errorf("the signal ended the other job, too: %v", err)
	}
}

// TestGuardianRenewsWhileFrontIsStopped: the guardian renews the lock while the front is stopped, and releases it
// when the command has ended.
func TestGuardianRenewsWhileFrontIsStopped(t *testing.T) {
	w := newSandbox(t)
	p := w.startScripted(append([]string{"run", "--store", "scripted://works", "--ttl", "3s", "--grace", "20ms", "x"}, asTestCommand()...)...)
	p.ready()
	p.signal(syscall.SIGSTOP)
	awaitState(t, p.cmd.Process.Pid, "T")
	// The test waits at least until the lease would have expired without a renewal.
	w.run("run", "--store", w.storeURL(), "y", "--", "sleep", "5").expectStatus(t, 0)
	p.send("say on")
	p.stdout.expect("said on")
	p.send("exit 6")
	p.signal(syscall.SIGCONT)
	p.expectStatus(6)
}

// TestFrontStoppedReleases: the front is stopped. The next waiter gets the lock when the command
// has ended, although the front is still stopped.
func TestFrontStoppedReleases(t *testing.T) {
	s := newProcessSandbox(t)
	p := s.holder(nil, "ignores")
	p.signal(syscall.SIGSTOP)
	next := s.next()
	s.endTestProcesses()
	next.expectGrantedAlone()
	p.signal(syscall.SIGCONT)
	p.expectStatus(0)
}

// TestStoppedGuardianEndsCommandInTime: while the guardian is stopped the lease is not renewed. The front
// kills the command when the lock is no longer valid.
func TestStoppedGuardianEndsCommandInTime(t *testing.T) {
	w := newSandbox(t)
	p := w.startScripted(append([]string{"run", "--store", "scripted://works", "--ttl", "6s", "--grace", "1s", "x"}, asTestCommand()...)...)
	pid := p.ready()
	p.stopGuardian()
	p.stderr.expect("does not answer")
	awaitState(t, pid, "")
	p.continueGuardian()
	p.expectStatus(74)
}

// TestStoppedFrontAndGuardianKillCommand: front and guardian are stopped beyond the TTL. When they continue, they kill
// the command.
func TestStoppedFrontAndGuardianKillCommand(t *testing.T) {
	w := newSandbox(t)
	p := w.startScripted(append([]string{"run", "--store", "scripted://works", "--ttl", "3s", "--grace", "500ms", "x"}, asTestCommand()...)...)
	pid := p.ready()
	p.signal(syscall.SIGSTOP)
	p.stopGuardian()
	w.run("run", "--store", w.storeURL(), "y", "--", "sleep", "4").expectStatus(t, 0)
	p.continueGuardian()
	awaitState(t, pid, "")
	p.signal(syscall.SIGCONT)
	p.expectStatus(74)
}

// TestGuardianOfFileStoreStopped: a stopped guardian keeps the file store's lock, so the front
// does not kill the command.
func TestGuardianOfFileStoreStopped(t *testing.T) {
	s := newProcessSandbox(t)
	p := s.holder(nil, "ends")
	p.stopGuardian()
	s.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
	p.continueGuardian()
	p.signal(syscall.SIGTERM)
	p.expectStatus(5)
}

// TestGuardianForwardsSignals: a signal to the process that holdfast show names reaches the
// command.
func TestGuardianForwardsSignals(t *testing.T) {
	s := newProcessSandbox(t)
	p := s.holder(nil, "ends")
	must(t, syscall.Kill(p.guardian(), syscall.SIGTERM))
	p.expectStatus(5)
}

// TestGuardianRefusesDirectStart: a user starts the guardian. It refuses, because only holdfast
// run may start it.
func TestGuardianRefusesDirectStart(t *testing.T) {
	w := withStore(t)
	for _, args := range [][]string{{"run-guardian"}, {"run-guardian", "0", "x"}, {"run-guardian", "7", "x"}, {"run-guardian", "x", "x"}} {
		r := w.run(args...).expectStatus(t, 64)
		contains(t, r.stderr, "only holdfast run starts this")
	}
	if r := w.run("--help"); strings.Contains(r.stdout, "run-guardian") {
		t.Errorf("help:\n%s", r.stdout)
	}
}

// TestCommandInheritsNothingOfGuardian: the command inherits no file and no variable of the
// guardian.
func TestCommandInheritsNothingOfGuardian(t *testing.T) {
	w := withStore(t)
	const script = `cd /proc/$$/fd && echo *; env`
	bare := w.finish(exec.Command("sh", "-c", script), nil, "")
	r := w.run("run", "x", "--", "sh", "-c", script).expectStatus(t, 0)
	want, _, _ := strings.Cut(bare.stdout, "\n")
	if got, _, _ := strings.Cut(r.stdout, "\n"); got != want {
		t.Errorf("descriptors %s, without a lock %s", got, want)
	}
	for line := range strings.Lines(r.stdout) {
		if key, _, _ := strings.Cut(line, "="); strings.HasPrefix(key, "HOLDFAST_") &&
			!slices.Contains([]string{"HOLDFAST_STORE", "HOLDFAST_NAME", "HOLDFAST_TOKEN", "HOLDFAST_HELD"}, key) {
			t.Errorf("the command got %s", line)
		}
	}
}

// TestNoPasswordInProcessList: the process list shows no password. The guardian's arguments are
// only its descriptor and the lock's name.
func TestNoPasswordInProcessList(t *testing.T) {
	w := newSandbox(t)
	must(t, os.WriteFile(w.path("url"), []byte("scripted://me:s3cr3t-pw@works\n"), 0o600))
	p := w.startScripted(append([]string{"run", "--store-file", w.path("url"), "x"}, asTestCommand()...)...)
	p.ready()
	for _, pid := range []int{p.cmd.Process.Pid, p.guardian()} {
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
			if err != nil || strings.Contains(string(b), "s3cr3t") {
				t.Errorf("%s of %d: %q, %v", file, pid, b, err)
			}
		}
	}
}

// TestProcessesOutsideGroupEndBeforeRelease: processes have left the command's group and session.
// They end before the guardian releases the lock.
func TestProcessesOutsideGroupEndBeforeRelease(t *testing.T) {
	for _, words := range [][]string{{"leaves", "ends"}, {"leaves", "ignores"}, {"daemon", "ends"}, {"daemon", "ignores"}, {"daemon", "closes"}} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			s := newProcessSandbox(t)
			p := s.holder(nil, words...)
			next := s.next()
			p.send("go")
			p.expectStatus(3)
			if alive := marked(s.mark); len(alive) > 0 {
				t.Errorf("alive: %v", alive)
			}
			next.expectGrantedAlone()
		})
	}
}

// TestSelfRespawningProcessesEnd: each process starts another process in a new session, and
// ends at once. The guardian ends them all.
func TestSelfRespawningProcessesEnd(t *testing.T) {
	s := newProcessSandbox(t)
	const respawn = `#!/bin/sh
		trap "" TERM
		[ -e goes-on ] || exit
		setsid ./respawn &
		exit 3`
	for name, mode := range map[string]os.FileMode{"respawn": 0o700, "goes-on": 0o600} {
		must(t, os.WriteFile(s.path(name), []byte(respawn), mode))
	}
	t.Cleanup(func() { _ = os.Remove(s.path("goes-on")) })
	p := s.start("run", "--grace", "50ms", "x", "--", "env", markEnv+"="+s.mark, "./respawn")
	p.expectStatus(3)
	if alive := marked(s.mark); len(alive) > 0 {
		t.Errorf("alive: %v", alive)
	}
	p.stderr.expect("killed what the command left behind")
}

// TestLossEndsProcessesOutsideGroup: when the lock is lost, processes outside the command's
// group end, too.
func TestLossEndsProcessesOutsideGroup(t *testing.T) {
	s := newProcessSandbox(t)
	on, fire := fifo(t, s.sandbox)
	p := s.startScripted(append([]string{"run", "--store", "scripted://lose?on=" + on, "--ttl", "30s", "--grace", "200ms", "x", "--"},
		s.testProcess("daemon", "ignores")...)...)
	p.ready()
	fire()
	p.expectStatus(74)
	if alive := marked(s.mark); len(alive) > 0 {
		t.Errorf("alive: %v", alive)
	}
}

// TestWithoutProcLockIsKept: without /proc, or with that of another PID namespace, the guardian cannot list processes
// outside the group. It kills the processes in the group, and keeps the lock until the others end.
func TestWithoutProcLockIsKept(t *testing.T) {
	for name, hide := range map[string]string{
		"without":           "exec unshare --mount sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh ",
		"another namespace": "exec unshare --pid --fork ",
	} {
		t.Run(name, func(t *testing.T) {
			if err := shell(hide + "true").Run(); err != nil {
				unable(t, "no right to make a namespace: "+err.Error())
			}
			s := newProcessSandbox(t)
			holder := func(words ...string) *process {
				c := exec.Command("sh", append([]string{"-c", hide + `"$@"`, "sh", testBinary, "run", "--store", "scripted://works", "--grace", "100ms", "x", "--"}, s.testProcess(words...)...)...)
				p := s.startCmd(c, []string{roleEnv + "=" + roleScripted})
				p.ready()
				p.send("go")
				return p
			}
			p := holder("leaves", "ignores")
			p.expectStatus(3)
			if alive := marked(s.mark); len(alive) > 0 {
				t.Errorf("alive: %v", alive)
			}
			p = holder("daemon", "ignores")
			p.stderr.expect(`without /proc the rest is invisible, and "x" is kept until it ends`)
			s.endTestProcesses()
			p.expectStatus(3)
		})
	}
}
