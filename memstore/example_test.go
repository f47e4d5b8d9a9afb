package memstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memstore"
)

// A unit test takes the lock away while the work runs.
func ExampleScript_Lose() {
	ctx := context.Background()
	store := memstore.New()
	locker, err := holdfast.New(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close(ctx) }()

	err = locker.Do(ctx, "order/4711", func(ctx context.Context) error {
		_ = store.Script().Lose("order/4711", holdfast.CauseTaken)
		<-ctx.Done() // the work notices
		return nil
	})
	if lost, ok := errors.AsType[*holdfast.LostError](err); ok {
		fmt.Println("lost:", lost.Cause)
	}
	// Output: lost: taken
}
