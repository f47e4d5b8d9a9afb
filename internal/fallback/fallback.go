// Package fallback lets tests switch off the timed fallback of a waiter: the check that a store
// makes at intervals although it got no notification. With the fallback, a lost notification
// only costs a second, and no test fails. Without it, the waiter waits forever.
package fallback

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

type key struct{}

// never is longer than any test.
const never = 24 * time.Hour

// After returns the interval after which a waiter checks by itself: d, unless the context comes
// from a store of Without.
func After(ctx context.Context, d time.Duration) time.Duration {
	if ctx.Value(key{}) != nil {
		return never
	}
	return d
}

// Without returns the store with the fallback of its waiters switched off. The store has to
// take its interval from After.
func Without(s driver.Store) driver.Store { return without{s} }

type without struct{ driver.Store }

// Acquire calls the store's Acquire with a context that switches the fallback off.
func (w without) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return w.Store.Acquire(context.WithValue(ctx, key{}, true), r)
}
