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

// TestHolderInAnotherPIDNamespaceIsMarked: the holder has its number in another PID namespace, where it names another
// process. Inspect and Break say so, and report no state of the process that has the number here.
func TestHolderInAnotherPIDNamespaceIsMarked(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	dir := tempDir(t)
	cmd := exec.Command(os.Args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	startCommand(t, cmd, "hold", dir, "a").says("granted")
	s := open(t, dir)
	own := take(t, s, "b", driver.Exclusive)
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
