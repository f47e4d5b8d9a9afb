// Package wallclock is the clock of schedules, which a test can set wrong for one
// replica: the clocks of replicas differ, and tests run on one machine.
package wallclock

import (
	"context"
	"time"
)

type key struct{}

// With returns a context in which the clock is ahead. It is for tests.
func With(ctx context.Context, ahead time.Duration) context.Context {
	return context.WithValue(ctx, key{}, ahead)
}

// Now returns the time of day.
func Now(ctx context.Context) time.Time {
	ahead, _ := ctx.Value(key{}).(time.Duration)
	return time.Now().Add(ahead)
}
