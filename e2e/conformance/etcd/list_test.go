package etcd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestListReadsOneRevision: List reads three pages. After the first one, the holder of a lock releases
// it, and another client gets it in the same transaction. The new holder's key belongs to the second
// page, and that of the old one to the third. The list has the lock, which was held all the time.
func TestListReadsOneRevision(t *testing.T) {
	const page = 1000
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	var keys []string // of the lock, in byte order
	leases := map[string]clientv3.LeaseID{}
	for range 2 {
		lease, err := client.Grant(t.Context(), 3600)
		check(t, err)
		key := "lock/" + strconv.FormatInt(int64(lease.ID), 16)
		keys, leases[key] = append(keys, key), lease.ID
	}
	slices.Sort(keys)
	younger, older := keys[0], keys[1]
	put := func(key string) clientv3.Op { return clientv3.OpPut(key, "", clientv3.WithLease(leases[key])) }

	// These keys are no locks, and fill the first two pages.
	fill := []clientv3.Op{clientv3.OpPut(younger+"0", "")}
	for i := range 2*page - 1 {
		fill = append(fill, clientv3.OpPut(fmt.Sprintf("a%04d", i), ""))
	}
	for part := range slices.Chunk(append(fill, put(older)), 100) {
		_, err := client.Txn(t.Context()).Then(part...).Commit()
		check(t, err)
	}

	reads := 0
	s := over(t, c.direct(t, unary(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if method == "/etcdserverpb.KV/Txn" { // a read
			if reads++; reads == 1 {
				if _, err := client.Txn(ctx).Then(clientv3.OpDelete(older), put(younger)).Commit(); err != nil {
					t.Error(err)
				}
			}
		}
		return err
	})))
	var names []string
	for st, err := range s.List(t.Context(), "") {
		check(t, err)
		names = append(names, st.Name)
	}
	if reads != 3 || !slices.Equal(names, []string{"lock"}) {
		t.Errorf("%d reads list %q", reads, names)
	}
}
