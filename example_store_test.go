package holdfast_test

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// newStore is the store of the examples: memory, so that they run anywhere. A test runs
// them on a store that goes away and comes back, and another one on every other store.
var newStore = func() driver.Store { return memstore.New() }

// open opens the store of the examples. A program opens the store that it has:
// holdfast.Open(ctx, "file:///var/lib/app/locks").
func open() *holdfast.Locker {
	locker, err := holdfast.New(newStore())
	if err != nil {
		panic(err)
	}
	return locker
}
