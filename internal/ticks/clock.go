package ticks

import (
	"context"
	"time"
)

// Clock is a clock of schedules, for tests.
type Clock interface {
	Now() time.Time
	// Sleep waits for a duration, and reports whether it has passed.
	Sleep(d time.Duration) bool
}

type clock struct{}

// WithClock returns a context with the clock of schedules.
func WithClock(ctx context.Context, c Clock) context.Context {
	return context.WithValue(ctx, clock{}, c)
}

// ClockOf returns the clock of WithClock, nil if there is none.
func ClockOf(ctx context.Context) Clock {
	c, _ := ctx.Value(clock{}).(Clock)
	return c
}

type ahead struct{}

// Ahead returns a context in which the clock of schedules is ahead, for tests: the clocks of replicas differ, and tests
// run on one machine.
func Ahead(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, ahead{}, d)
}

// Now returns the time of day.
func Now(ctx context.Context) time.Time {
	if c := ClockOf(ctx); c != nil {
		return c.Now()
	}
	d, _ := ctx.Value(ahead{}).(time.Duration)
	return time.Now().Add(d)
}
