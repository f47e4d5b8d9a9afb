package driver

import "time"

// Clock is what trust is measured with. It never jumps with the wall clock.
type Clock interface {
	// Now carries a monotonic reading, as time.Now does.
	Now() time.Time
	// Slept is how long the machine has been suspended in all: what a monotonic
	// clock leaves out.
	Slept() time.Duration
}

// Instant is a moment on a clock. The zero Instant is unset.
type Instant struct {
	clock Clock
	at    time.Time
	slept time.Duration
}

// Now is this moment on the system's clock, which goes on through a suspended
// machine. A store takes it just before it sends a request that sets a deadline
// at a server.
func Now() Instant { return NowOn(systemClock{}) }

// NowInProcess is this moment on the process's own clock, which stops with a
// suspended machine: right where the store's clock stops with it, or where
// grants have no deadline.
func NowInProcess() Instant { return NowOn(processClock{}) }

// NowOn is this moment on a clock of the caller's, for tests.
func NowOn(c Clock) Instant {
	// Slept before Now: time that passes between the two readings counts against
	// trust, never for it.
	slept := c.Slept()
	return Instant{clock: c, at: c.Now(), slept: slept}
}

// IsZero tells whether the instant was never taken.
func (i Instant) IsZero() bool { return i.clock == nil }

// Time is the instant as a time with a monotonic reading.
func (i Instant) Time() time.Time { return i.at }

// Elapsed is the time since the instant, suspended time included, and how much
// of it the machine was suspended.
func (i Instant) Elapsed() (total, slept time.Duration) {
	if i.clock == nil {
		return Forever, 0
	}
	slept = max(i.clock.Slept()-i.slept, 0)
	return i.clock.Now().Sub(i.at) + slept, slept
}

type processClock struct{}

func (processClock) Now() time.Time       { return time.Now() }
func (processClock) Slept() time.Duration { return 0 }

type systemClock struct{}

func (systemClock) Now() time.Time       { return time.Now() }
func (systemClock) Slept() time.Duration { return suspended() }
