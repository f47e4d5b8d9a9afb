package redlock_test

import (
	"context"
	"log"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// Three independent servers: a lock survives the failure of one.
func ExampleOpen() {
	ctx := context.Background()
	store, err := redlock.Open(ctx, "redlock://?node=redis1:6379&node=redis2:6379&node=redis3:6379",
		redlock.MaxTTL(30*time.Second))
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
