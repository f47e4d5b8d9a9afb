package filestore_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestProcessInAnotherPIDNamespaceIsMarked: a holder and a waiter have their numbers in another PID namespace. Here the
// numbers name other processes. Inspect and Break say so, and report no state of the processes that have the numbers here.
func TestProcessInAnotherPIDNamespaceIsMarked(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	dir := tempDir(t)
	apart := func(name string) *child {
		cmd := exec.Command(os.Args[0])
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		return startCommand(t, cmd, "hold", dir, name)
	}
	apart("a").says("granted")
	s := open(t, dir)
	own := take(t, s, "b", driver.Exclusive)
	apart("b").says("queued")
	near := start(t, "hold", dir, "b")
	near.says("queued")
	if err := near.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var notes []string
	eventually(t, "the waiter here is stopped", func() bool {
		st, err := s.Inspect(testContext(t), "b")
		if err != nil || len(st.Waiters) != 2 {
			t.Fatalf("%+v, %v", st, err)
		}
		notes = []string{st.Waiters[0].Note, st.Waiters[1].Note}
		return notes[1] == "stopped"
	})
	if notes[0] != "pid of another PID namespace" {
		t.Errorf("notes of waiters: %q", notes)
	}
	inspect := func(name string) driver.Holder {
		st, err := s.Inspect(testContext(t), name)
		if err != nil || len(st.Holders) != 1 {
			t.Fatalf("%s: %+v, %v", name, st, err)
		}
		return st.Holders[0]
	}
	there, here := inspect("a"), inspect("b")
	if there.PID != 1 || there.Note != "pid of another PID namespace" || here.Note != "" {
		t.Errorf("notes of holders: %+v, %+v", there, here)
	}
	release(t, s, own)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	broken := make(chan error, 1)
	go func() { broken <- s.Break(ctx, "a", there.Token) }()
	eventually(t, "the request to end has arrived", func() bool { return strings.Contains(inspect("a").Note, "end requested") })
	cancel()
	if err := <-broken; err == nil || !strings.Contains(err.Error(), "in another PID namespace") {
		t.Errorf("breaking the lock: %v", err)
	}
}
