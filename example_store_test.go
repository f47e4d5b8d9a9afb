package holdfast_test

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// newStore opens the store of the examples. It is in memory, so that they run anywhere. One
// test runs the examples on a store with outages, another one on every other store.
var newStore = func() driver.Store { return memstore.New() }

// open opens the store of the examples. A program opens its own store instead:
// holdfast.Open(ctx, "file:///var/lib/app/locks").
func open() *holdfast.Locker {
	locker, err := holdfast.New(newStore())
	if err != nil {
		panic(err)
	}
	return locker
}
