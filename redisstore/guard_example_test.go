package redisstore_test

import (
	"context"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redisstore"
)

// The guard compares and writes in one script.
func ExampleGuard() {
	save := func(ctx context.Context, store *redisstore.Store) error {
		return store.Guard().Write(ctx, "invoice:{42}", holdfast.Token(ctx, "invoices"), redisstore.Commands{
			{"HSET", "status", "sent"},
			{"EXPIRE", "86400"},
		})
	}
	_ = save
}
