//go:build linux || darwin

package main_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fifo makes a FIFO, and returns a function that writes a line to it. The function returns when the
// store has read the line and the fault has begun.
func fifo(t *testing.T, w *sandbox) (path string, fire func()) {
	t.Helper()
	path = w.path("fifo")
	must(t, syscall.Mkfifo(path, 0o600))
	return path, func() {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		if _, err := f.WriteString("now\n"); err != nil {
			t.Fatal(err)
		}
		// The store closes its end of the FIFO after the fault. Poll requests no event, so it returns
		// when that end is closed.
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd())}}, -1)
			if err == nil {
				return
			}
			if err != unix.EINTR {
				t.Fatal(err)
			}
		}
	}
}

// TestLossEndsCommand takes the lock away in each possible way, and checks how the command ends.
func TestLossEndsCommand(t *testing.T) {
	for name, c := range map[string]struct {
		action, word string
		ttl, grace   string
		want         []string
	}{
		"pushed, the command ends":        {"lose", "exit-on-term", "30s", "10s", []string{"is lost (gone), token 1", "SIGKILL in 10s", "exit status 5"}},
		"pushed, the command is killed":   {"lose", "", "30s", "2s", []string{"is lost (gone)", "SIGKILL in 2s", "killed by SIGKILL"}},
		"found by a renewal":              {"forget", "exit-on-term", "6s", "2s", []string{"is lost (gone: no grant", "exit status 5"}},
		"in doubt, the command ends":      {"fail-renewal", "exit-on-term", "6s", "2s", []string{"cannot be renewed (the store cannot be reached (scripted)) and", "exit status 5"}},
		"in doubt, the command is killed": {"fail-renewal", "", "6s", "2s", []string{"cannot be renewed", "killed by SIGKILL"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSandbox(t)
			on, fire := fifo(t, w)
			p := w.startScripted(append([]string{"run", "--store", "scripted://" + c.action + "?on=" + on,
				"--ttl", c.ttl, "--grace", c.grace, "x"}, asTestCommand(c.word)...)...)
			pid := p.ready()
			fire()
			p.stdout.expect("signal " + syscall.SIGTERM.String())
			p.expectStatus(74)
			contains(t, p.stderr.all(), c.want...)
			if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
				t.Errorf("the command is still alive: %v", err)
			}
		})
	}
}

// TestTTLAndGraceAdapt: a value that the user omits adapts to the given value and to the
// longest TTL of the store.
func TestTTLAndGraceAdapt(t *testing.T) {
	for name, c := range map[string]struct {
		flags   []string
		longest string
		grace   string
	}{
		"nothing given":                                    {nil, "24h", "10s"},
		"a shorter TTL":                                    {[]string{"--ttl", "10s"}, "24h", "3.3s"},
		"a longer TTL":                                     {[]string{"--ttl", "1h"}, "24h", "10s"},
		"a longer grace":                                   {[]string{"--grace", "20s"}, "1m", "20s"},
		"a store with shorter TTLs":                        {nil, "12s", "4s"},
		"a store with shorter TTLs, and --ttl":             {[]string{"--ttl", "6s"}, "12s", "2s"},
		"a store with shorter TTLs, and a shorter grace":   {[]string{"--grace", "1s"}, "12s", "1s"},
		"a store with shorter TTLs, and its longest grace": {[]string{"--grace", "4s"}, "12s", "4s"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSandbox(t)
			on, fire := fifo(t, w)
			args := append([]string{"run", "--store", "scripted://lose?max-ttl=" + c.longest + "&on=" + on}, c.flags...)
			p := w.startScripted(append(append(args, "x"), asTestCommand("exit-on-term")...)...)
			p.ready()
			fire()
			p.stderr.expect("SIGKILL in " + c.grace)
			p.expectStatus(74)
		})
	}
}

// TestGraceAboveStoreLimitIsRefused: the grace is longer than a third of the store's longest TTL.
// The message names the flag, the store's limit and a valid value.
func TestGraceAboveStoreLimitIsRefused(t *testing.T) {
	w := newSandbox(t)
	r := w.runScripted(nil, run("--store", "scripted://works?max-ttl=12s", "--grace", "5s")...).expectStatus(t, 64)
	if want := "--grace 5s is longer than a third of 12s, the longest TTL of the memory store: give --grace 4s or less"; !strings.Contains(r.stderr, want) {
		t.Errorf("stderr does not contain %q:\n%s", want, r.stderr)
	}
	if _, err := os.Stat(w.path("ran")); err == nil {
		t.Error("the command ran")
	}
}

// TestLossFoundByReleaseSetsStatus: the command succeeded, but the release finds that the lock
// was lost. holdfast run ends with status 74.
func TestLossFoundByReleaseSetsStatus(t *testing.T) {
	w := newSandbox(t)
	on, fire := fifo(t, w)
	p := w.startScripted(append([]string{"run", "--store", "scripted://forget?on=" + on, "--ttl", "24h", "x"}, asTestCommand()...)...)
	p.ready()
	fire()
	p.send("exit 0")
	p.expectStatus(74)
	if got := p.stderr.all(); !strings.Contains(got, "was lost while the command ran") {
		t.Errorf("stderr: %q", got)
	}
}

// TestLossWithUnreadStderrEndsCommand: no process reads standard error, and the command
// still ends in time.
func TestLossWithUnreadStderrEndsCommand(t *testing.T) {
	for name, c := range map[string]struct{ word, grace string }{
		"the command ends":      {"exit-on-term", "10s"},
		"the command is killed": {"", "2s"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSandbox(t)
			on, fire := fifo(t, w)
			r, full, err := os.Pipe()
			must(t, err)
			defer r.Close()
			fd := int(full.Fd())
			must(t, syscall.SetNonblock(fd, true))
			for err == nil { // fill the pipe
				_, err = syscall.Write(fd, make([]byte, 512))
			}
			must(t, syscall.SetNonblock(fd, false))
			// Only the command has this FIFO open for writing, so the FIFO's end of file shows that the
			// command has ended.
			alive := w.path("alive")
			must(t, syscall.Mkfifo(alive, 0o600))
			cmd := exec.Command(testBinary, append([]string{"run", "-v", "--store", "scripted://lose?on=" + on,
				"--ttl", "30s", "--grace", c.grace, "x", "--", "sh", "-c", `exec "$@" 9>alive`, "sh"}, asTestCommand(c.word)[1:]...)...)
			cmd.Stderr = full
			p := w.startCmd(cmd, []string{roleEnv + "=" + roleScripted})
			full.Close()
			f, err := os.Open(alive)
			must(t, err)
			defer f.Close()
			p.ready()
			fire()
			p.stdout.expect("signal " + syscall.SIGTERM.String())
			if _, err := f.Read(make([]byte, 1)); err != io.EOF { // returns when the command has ended
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, r) }() // empty the pipe, so that holdfast can end
			p.expectStatus(74)
		})
	}
}
