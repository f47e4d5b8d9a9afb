package servers

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestStalledDiskHoldsSync: a sync returns while the disk goes, waits while it is stalled, and
// returns when it goes on. A process that waits for its disk can be killed.
func TestStalledDiskHoldsSync(t *testing.T) {
	d, err := NewDisk()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(d.Close)
	file := filepath.Join(t.TempDir(), "f")
	sync := func() (*exec.Cmd, <-chan error) {
		t.Helper()
		command := d.Command([]string{"dd", "if=/dev/zero", "of=" + file, "bs=1", "count=1", "conv=fsync", "status=none"})
		cmd := exec.Command(command[0], command[1:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		return cmd, done
	}
	ends := func(done <-chan error) error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			t.Fatal("it does not end")
			panic("unreachable")
		}
	}
	_, first := sync()
	if err := ends(first); err != nil {
		t.Fatal(err)
	}
	d.Stall()
	waits, second := sync()
	_, third := sync()
	select {
	case err := <-second:
		t.Fatalf("a sync returned from a stalled disk: %v", err)
	case err := <-third:
		t.Fatalf("a sync returned from a stalled disk: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := waits.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := ends(second); err == nil {
		t.Error("a process that was killed ended well")
	}
	d.Resume()
	if err := ends(third); err != nil {
		t.Error(err)
	}
}
