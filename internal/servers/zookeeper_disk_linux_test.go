package servers_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestStalledDiskHoldsWritesOfZooKeeper requires that a server whose disk is stalled confirms no write, and
// that Resume lets the write continue.
func TestStalledDiskHoldsWritesOfZooKeeper(t *testing.T) {
	z, err := servers.StartZooKeeper(t.Context(), t.TempDir(), servers.ZooKeeperConfig{Disks: true})
	missing := errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1"
	if missing || errors.Is(err, servers.ErrNoDisk) {
		t.Skip(err)
	}
	must.Succeed(t, err)
	t.Cleanup(z.End)
	s, err := z.Session(t.Context(), time.Minute)
	must.Succeed(t, err)
	t.Cleanup(s.Close)
	z.Disk().Stall()
	written := make(chan error, 1)
	go func() {
		_, _, err := s.Create("/written", 0)
		written <- err
	}()
	select {
	case err := <-written:
		t.Fatalf("a write was confirmed although the disk is stalled: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	z.Disk().Resume()
	select {
	case err := <-written:
		must.Succeed(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the write still waits after Resume")
	}
}
