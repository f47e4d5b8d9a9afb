package redisstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/redisstore"
)

// The guard compares the token and writes in one script.
func ExampleGuard() {
	ctx := context.Background()
	store, err := redisstore.Open(ctx, "redis://localhost")
	if err != nil {
		panic(err)
	}
	locker, err := holdfast.New(store)
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)

	err = locker.Do(ctx, "invoices", func(ctx context.Context) error {
		return store.Guard().Write(ctx, "invoice:{42}", holdfast.Token(ctx, "invoices"), redisstore.Commands{{"HSET", "status", "sent"}, {"EXPIRE", "86400"}})
	})
	fmt.Println(err)
	// A holder that was paused has an older token.
	err = store.Guard().Write(ctx, "invoice:{42}", 1, redisstore.Commands{{"DEL"}})
	fmt.Println(errors.Is(err, fence.ErrStale))
	// With a server it prints:
	// <nil>
	// true
}
