package natsstore_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/natsstore"
)

// The bucket has three replicas: holdfast init has created it.
func ExampleOpen() {
	ctx := context.Background()
	store, err := natsstore.Open(ctx, "nats://nats-1,nats-2,nats-3?bucket=locks&replicas=3", "billing")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close(ctx) }() // after the Locker, which does not close it
	locker, err := holdfast.New(store)
	if err != nil {
		log.Fatal(err)
	}
	// Close releases the locks.
	defer func() { _ = locker.Close(ctx) }()

	err = locker.Do(ctx, "order/4711", func(ctx context.Context) error {
		// ctx ends when the lock is lost. The resource compares the token.
		log.Print("billing with token ", holdfast.Token(ctx, "order/4711"))
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}
