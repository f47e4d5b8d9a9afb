package etcdstore_test

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/fence"
)

// The guard compares and writes in one transaction.
func ExampleGuard() {
	ctx := context.Background()
	store, err := etcdstore.Open(ctx, "etcd://localhost")
	if err != nil {
		panic(err)
	}
	locker, err := holdfast.New(store)
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)

	err = locker.Do(ctx, "billing", func(ctx context.Context) error {
		return store.Guard().Write(ctx, "billing", holdfast.Token(ctx, "billing"), []clientv3.Op{clientv3.OpPut("total", "42")})
	})
	fmt.Println(err)
	// A holder that was paused has an older token.
	err = store.Guard().Write(ctx, "billing", 1, []clientv3.Op{clientv3.OpDelete("total")})
	fmt.Println(errors.Is(err, fence.ErrStale))
	// With a server it prints:
	// <nil>
	// true
}
