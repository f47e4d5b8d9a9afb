package zkstore_test

import (
	"context"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/zkstore"
)

// The guard compares and writes in one transaction.
func ExampleGuard() {
	save := func(ctx context.Context, store *zkstore.Store, state []byte) error {
		return store.Guard().Write(ctx, "state", holdfast.Token(ctx, "state"), []zkstore.Op{zkstore.SetData("/app/state", state, -1)})
	}
	_ = save
}
