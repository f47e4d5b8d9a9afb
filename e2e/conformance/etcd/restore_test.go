package etcd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

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

	// epoch rolls back a request with an unknown outcome, so that the session writes an epoch key.
	// The copy contains only the first of two such writes.
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

// TestRestoreEndsLocksOfTheCopy: a client reaches a server that has a copy of all its keys and leases. The
// server has an older revision, or belongs to another cluster. The client ends its locks, although the
// server has their keys.
func TestRestoreEndsLocksOfTheCopy(t *testing.T) {
	// Each restore calls compared, which waits until the client has compared the server with what it
	// has seen.
	for what, restore := range map[string]func(t *testing.T, c *cluster, client *clientv3.Client, compared func()){
		"an older revision": func(t *testing.T, c *cluster, client *clientv3.Client, compared func()) {
			copied := filepath.Join(t.TempDir(), "copy")
			if err := c.members[0].Backup(copied); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if _, err := client.Put(t.Context(), "later", ""); err != nil {
					t.Fatal(err)
				}
			}
			compared()
			if err := c.members[0].Restore(t.Context(), copied); err != nil {
				t.Fatal(err)
			}
		},
		"another cluster": func(t *testing.T, c *cluster, client *clientv3.Client, compared func()) {
			compared()
			if err := c.proxies[0].Redirect(copyOf(t, client).members[0].Client); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := start(t, servers.EtcdConfig{})
			client := c.direct(t)
			var read atomic.Int32 // the reads of the sentinel
			s := over(t, c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = []string{c.proxies[0].Address()} },
				unary(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					err := invoke(ctx, method, req, reply, cc, opts...)
					if r, is := req.(*etcdserverpb.RangeRequest); is && err == nil && strings.HasPrefix(string(r.Key), sentinels) {
						read.Add(1)
					}
					return err
				})))
			held := request("held", "n", 1, time.Hour)
			must(t, s, held)
			c.watched(t, 2)
			restore(t, c, client, func() {
				seen := read.Load() // the first of two further reads may have begun already
				eventually(t, "the client compares the server with what it has seen", func() bool { return read.Load() >= seen+2 })
			})
			receive(t, "the loss", held.From.(*requester).lost)
		})
	}
}

// copyOf starts another cluster with the same keys and their lease, at the same revisions. The revision
// of the new cluster is higher than that of the first one, so the client finds no older revision.
func copyOf(t *testing.T, client *clientv3.Client) *cluster {
	t.Helper()
	all, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil || len(all.Kvs) < 2 {
		t.Fatal(all, err)
	}
	made := map[int64][]clientv3.Op{}
	for _, kv := range all.Kvs {
		if kv.CreateRevision != kv.ModRevision || kv.Lease != all.Kvs[0].Lease {
			t.Fatalf("want keys of one write and one lease: %+v", kv)
		}
		made[kv.CreateRevision] = append(made[kv.CreateRevision], clientv3.OpPut(string(kv.Key), string(kv.Value), clientv3.WithLease(clientv3.LeaseID(kv.Lease))))
	}
	other := start(t, servers.EtcdConfig{})
	to := other.direct(t)
	lease := &etcdserverpb.LeaseGrantRequest{ID: all.Kvs[0].Lease, TTL: 3600}
	if _, err := etcdserverpb.NewLeaseClient(to.ActiveConnection()).LeaseGrant(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	for rev := int64(2); rev <= all.Header.Revision+100; rev++ { // an empty server has revision 1
		ops := made[rev]
		if ops == nil {
			ops = []clientv3.Op{clientv3.OpPut("fill", "")}
		}
		put, err := to.Txn(t.Context()).Then(ops...).Commit()
		if err != nil || put.Header.Revision != rev {
			t.Fatal(put, err)
		}
	}
	return other
}
