package servers_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestResumeDiskAfterRefusedStall requires that ResumeDisk ends a stall although a second StallDisk has
// failed.
func TestResumeDiskAfterRefusedStall(t *testing.T) {
	if err := servers.ZooKeeperInstalled(); err != nil {
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	z, err := servers.StartZooKeeper(t.Context(), t.TempDir(), servers.ZooKeeperConfig{})
	must.Succeed(t, err)
	t.Cleanup(z.Kill)
	must.Succeed(t, z.StallDisk())
	if err := z.StallDisk(); err == nil {
		t.Fatal("a stalled disk was stalled again")
	}
	if n := stoppedThreads(t, z.PID()); n != 1 {
		t.Fatalf("%d threads are stopped, want 1", n)
	}
	z.ResumeDisk()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for stoppedThreads(t, z.PID()) != 0 {
		if ctx.Err() != nil {
			t.Fatal("a thread is still stopped after ResumeDisk")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stoppedThreads returns the number of threads of a process that a tracer has stopped.
func stoppedThreads(t *testing.T, pid int) (n int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	must.Succeed(t, err)
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if err == nil && bytes.Contains(status, []byte("State:\tt ")) { // a thread may have ended
			n++
		}
	}
	return n
}
