package zkstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/zkstore"
)

// The guard compares and writes in one transaction.
func ExampleGuard() {
	ctx := context.Background()
	store, err := zkstore.Open(ctx, "zk://localhost")
	if err != nil {
		panic(err)
	}
	locker, err := holdfast.New(store)
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)

	err = locker.Do(ctx, "state", func(ctx context.Context) error {
		return store.Guard().Write(ctx, "state", holdfast.Token(ctx, "state"), []zkstore.Op{zkstore.SetData("/app/state", []byte("42"), -1)})
	})
	fmt.Println(err)
	// A holder that was paused has an older token.
	err = store.Guard().Write(ctx, "state", 1, []zkstore.Op{zkstore.DeleteNode("/app/state", -1)})
	fmt.Println(errors.Is(err, fence.ErrStale))
	// With a server that has the node /app/state it prints:
	// <nil>
	// true
}
