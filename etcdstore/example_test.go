package etcdstore_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// The prefix is that of the command etcdctl lock locks/NAME, so holdfast and etcdctl exclude
// each other.
func ExampleOpen() {
	ctx := context.Background()
	store, err := etcdstore.Open(ctx, "etcds://etcd1,etcd2,etcd3/locks/?ca=/etc/etcd/ca.pem")
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
