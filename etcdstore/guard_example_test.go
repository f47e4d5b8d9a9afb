package etcdstore_test

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// The guard compares and writes in one transaction.
func ExampleGuard() {
	save := func(ctx context.Context, store *etcdstore.Store) error {
		return store.Guard().Write(ctx, "billing", holdfast.Token(ctx, "billing"), []clientv3.Op{clientv3.OpPut("total", "42")})
	}
	_ = save
}
