//go:build linux || darwin

package filestore_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/filestore"
)

// Locks between the processes of one machine need no server.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := filestore.Open(ctx, dir)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close(ctx) }() // after the Locker, which does not close it
	locker, err := holdfast.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close(ctx) }()

	err = locker.Do(ctx, "migration", func(context.Context) error {
		ran, err := locker.TryDo(ctx, "migration", func(context.Context) error { return nil })
		fmt.Println("a second holder:", ran)
		return err
	})
	fmt.Println(err)
	// Output:
	// a second holder: false
	// <nil>
}
