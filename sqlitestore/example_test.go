package sqlitestore_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/sqlitestore"
)

// The file is created by the first lock.
func ExampleOpen() {
	ctx := context.Background()
	store, err := sqlitestore.Open("/var/lib/app/locks.db", "")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close(ctx) }() // after the Locker, which does not close it
	locker, err := holdfast.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close(ctx) }() // releases the locks

	err = locker.Do(ctx, "nightly", func(ctx context.Context) error {
		log.Print("token ", holdfast.Token(ctx, "nightly")) // ctx ends when the lock is lost
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}
