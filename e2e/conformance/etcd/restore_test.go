package etcd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestRestoredFromOlderCopy: a server is restored from a copy that is older than some grants
// and releases. A holder that is not in the copy is notified of its loss. A grant that was
// released since blocks no client, and every client continues.
func TestRestoredFromOlderCopy(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	m := c.members[0]
	data, copied := filepath.Join(c.dir, "m0", "data"), filepath.Join(t.TempDir(), "copy")
	s, d := c.disturbed(t)

	// epoch rolls back a request with an unknown outcome, so that the session writes an epoch key.
	// The copy contains only the first of two such writes.
	epoch := func() {
		t.Helper()
		d.next(puts, after(errBroken))
		r := request("undone", 1, time.Hour)
		_, err := s.Acquire(t.Context(), r)
		requests.Code(t, s, err, driver.CodeUnknown)
		check(t, s.Undo(t.Context(), r))
	}
	epoch()
	before := request("before", 1, time.Hour)
	must(t, s, before)
	released := must(t, s, request("released", 1, time.Hour))
	c.watched(t, 3)
	m.Kill()
	check(t, os.CopyFS(copied, os.DirFS(data)))
	check(t, m.Restart(t.Context()))

	release(t, s, released)
	epoch()
	after := request("after", 1, time.Hour)
	must(t, s, after)
	c.watched(t, 3)
	m.Kill()
	check(t, os.RemoveAll(data))
	check(t, os.CopyFS(data, os.DirFS(copied)))
	check(t, m.Restart(t.Context()))

	receive(t, "the loss of a grant that the copy does not contain", requests.Of(after).Losses)
	for _, name := range []string{"released", "after", "undone"} {
		for _, client := range []*etcdstore.Store{c.open(t), s} {
			eventually(t, name+" can be locked", func() bool {
				g, err := client.Acquire(t.Context(), request(name, 1, time.Hour))
				return err == nil && client.Release(t.Context(), g, 0) == nil
			})
		}
	}
}

// TestRestoreWithRaisedRevisionFreesReleasedNames: a lock in the copy was released after the
// copy was made, and the revision is raised before a client sees the restored server. The
// client's session continues, and the name is free.
func TestRestoreWithRaisedRevisionFreesReleasedNames(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	m := c.members[0]
	copied := filepath.Join(t.TempDir(), "copy")
	s, client := c.open(t), c.direct(t)
	other := over(t, client)
	stays := request("stays", 1, time.Hour)
	must(t, s, stays)
	released := must(t, s, request("released", 1, time.Hour))
	c.watched(t, 3)
	check(t, m.Backup(copied))
	release(t, s, released)
	before, err := client.Get(t.Context(), "x")
	check(t, err)

	c.proxies[0].Cut()
	check(t, m.Restore(t.Context(), copied))
	for rev := int64(0); rev < before.Header.Revision+10; {
		put, err := client.Put(t.Context(), "raise", "")
		check(t, err)
		rev = put.Header.Revision
	}
	check(t, c.proxies[0].Heal())
	eventually(t, "the name can be locked by another client", func() bool {
		g, err := other.Acquire(t.Context(), request("released", 1, time.Minute))
		return err == nil && g.Token/tokenRoom > uint64(before.Header.Revision)
	})
	requests.Of(stays).Keeps(t)
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
			check(t, c.members[0].Backup(copied))
			for range 100 {
				_, err := client.Put(t.Context(), "later", "")
				check(t, err)
			}
			compared()
			check(t, c.members[0].Restore(t.Context(), copied))
		},
		"another cluster": func(t *testing.T, c *cluster, client *clientv3.Client, compared func()) {
			compared()
			check(t, c.proxies[0].Redirect(copyOf(t, client).members[0].Client))
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
					if txn, is := req.(*etcdserverpb.TxnRequest); is && err == nil && len(txn.Success) == 1 && strings.HasPrefix(string(txn.Success[0].GetRequestRange().GetKey()), sentinels) {
						read.Add(1)
					}
					return err
				})))
			held := request("n", 1, time.Hour)
			must(t, s, held)
			c.watched(t, 2)
			restore(t, c, client, func() {
				seen := read.Load() // the first of two further reads may have begun already
				eventually(t, "the client compares the server with what it has seen", func() bool { return read.Load() >= seen+2 })
			})
			receive(t, "the loss", requests.Of(held).Losses)
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
	_, err = etcdserverpb.NewLeaseClient(to.ActiveConnection()).LeaseGrant(t.Context(), lease)
	check(t, err)
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
