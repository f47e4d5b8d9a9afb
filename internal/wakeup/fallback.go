package wakeup

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

type withoutFallback struct{}

// never is longer than any test.
const never = 24 * time.Hour

// Fallback returns the interval after which a waiter checks by itself, although it got no notification: d, unless the
// context comes from a store of WithoutFallback.
func Fallback(ctx context.Context, d time.Duration) time.Duration {
	if ctx.Value(withoutFallback{}) != nil {
		return never
	}
	return d
}

// WithoutFallback returns the store with the fallback of its waiters switched off, for tests. With the fallback, a lost
// notification only costs a second, and no test fails. Without it, the waiter waits forever. The store has to take its
// interval from Fallback.
func WithoutFallback(s driver.Store) driver.Store { return notified{s} }

type notified struct{ driver.Store }

// Acquire calls the store's Acquire with a context that switches the fallback off.
func (n notified) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return n.Store.Acquire(context.WithValue(ctx, withoutFallback{}, true), r)
}
