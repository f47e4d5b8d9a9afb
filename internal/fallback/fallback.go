// Package fallback lets tests switch off the timed fallback of a waiter: the look that a
// store makes from time to time although it was notified of nothing. With it a lost wake-up
// costs a second, and no test sees it; without it the waiter waits forever.
package fallback

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

type key struct{}

// never is longer than any test.
const never = 24 * time.Hour

// After returns the interval after which a waiter looks by itself: d, unless the context is
// one that a store of Without passes on.
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

// Acquire is that of the store.
func (w without) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return w.Store.Acquire(context.WithValue(ctx, key{}, true), r)
}
