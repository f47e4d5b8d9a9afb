package s3store_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/s3store"
)

// The credentials are those of the environment.
func ExampleOpen() {
	ctx := context.Background()
	store, err := s3store.Open(ctx, "s3://my-bucket/locks?region=eu-central-1", "billing")
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
