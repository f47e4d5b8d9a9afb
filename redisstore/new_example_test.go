package redisstore_test

import (
	"context"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redisstore"
)

// The locks use the client that the service has already.
func ExampleNew() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store, err := redisstore.New(client)
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
