package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// TestRestoredFromOlderCopy: a server is restored from a copy that is older than some grants
// and releases. A holder that is not in the copy is notified of its loss. A grant that was
// released since blocks no client, and every client continues.
func TestRestoredFromOlderCopy(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	m := c.members[0]
	data, copied := filepath.Join(c.dir, "m0", "data"), filepath.Join(t.TempDir(), "copy")
	s, l := c.late(t)

	// epoch makes an epoch key of the session. The copy contains only the first of two.
	epoch := func(id string) {
		t.Helper()
		l.mu.Lock()
		l.lose = puts
		l.mu.Unlock()
		r := request(id, "undone", 1, time.Hour)
		if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeUnknown {
			t.Fatalf("Acquire returned %v, want an unknown outcome", err)
		}
		if err := s.Undo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	epoch("first")
	before := request("before", "before", 1, time.Hour)
	must(t, s, before)
	released := must(t, s, request("released", "released", 1, time.Hour))
	c.watched(t, 3)
	m.Kill()
	if err := os.CopyFS(copied, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	release(t, s, released)
	epoch("second")
	after := request("after", "after", 1, time.Hour)
	must(t, s, after)
	c.watched(t, 3)
	m.Kill()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(copied)); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	receive(t, "the loss of a grant that the copy does not contain", after.From.(*requester).lost)
	other := c.open(t)
	n := 0
	for _, name := range []string{"released", "after", "undone"} {
		eventually(t, name+" can be locked by another client", func() bool {
			n++
			g, err := other.Acquire(t.Context(), request(fmt.Sprint("other-", n), name, 1, time.Minute))
			return err == nil && other.Release(t.Context(), g, 0) == nil
		})
		eventually(t, name+" can be locked by the same client", func() bool {
			n++
			g, err := s.Acquire(t.Context(), request(fmt.Sprint("same-", n), name, 1, time.Hour))
			return err == nil && s.Release(t.Context(), g, 0) == nil
		})
	}
}

// TestRestoreWithRaisedRevisionFreesReleasedNames: a lock in the copy was released after the
// copy was made, and the revision is raised before a client sees the restored server. The
// client's session continues, and the name is free.
func TestRestoreWithRaisedRevisionFreesReleasedNames(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	m := c.members[0]
	copied := filepath.Join(t.TempDir(), "copy")
	s, client := c.open(t), c.direct(t)
	other := over(t, client)
	stays := request("stays", "stays", 1, time.Hour)
	must(t, s, stays)
	released := must(t, s, request("released", "released", 1, time.Hour))
	c.watched(t, 3)
	if err := m.Backup(copied); err != nil {
		t.Fatal(err)
	}
	release(t, s, released)
	before, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}

	c.proxies[0].Cut()
	if err := m.Restore(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	for rev := int64(0); rev < before.Header.Revision+10; {
		put, err := client.Put(t.Context(), "raise", "")
		if err != nil {
			t.Fatal(err)
		}
		rev = put.Header.Revision
	}
	if err := c.proxies[0].Heal(); err != nil {
		t.Fatal(err)
	}
	n := 0
	eventually(t, "the name can be locked by another client", func() bool {
		n++
		g, err := other.Acquire(t.Context(), request(fmt.Sprint("other-", n), "released", 1, time.Minute))
		return err == nil && g.Token > uint64(before.Header.Revision)
	})
	select {
	case <-stays.From.(*requester).lost:
		t.Error("a grant that stands in the copy was lost")
	default:
	}
}
