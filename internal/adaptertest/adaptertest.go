// Package adaptertest has what the tests of several adapters need.
package adaptertest

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// Open returns a Locker over a store. The end of the test closes it.
func Open(t testing.TB, s driver.Store) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// AwaitWaiter returns when a request waits for a name, or when ctx ends.
func AwaitWaiter(ctx context.Context, l *holdfast.Locker, name string) {
	for st, err := range l.Watch(ctx, name) {
		if err == nil && len(st.Waiters) > 0 {
			return
		}
	}
}

// Break takes a lock away from its holder.
func Break(t testing.TB, l *holdfast.Locker, name string) {
	t.Helper()
	st, err := l.Inspect(t.Context(), name)
	if err == nil {
		err = l.Break(t.Context(), name, st.Holders[0].Token)
	}
	if err != nil {
		t.Error(err)
	}
}
