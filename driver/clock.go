package driver

import "time"

// Clock is a clock that measures validity. It never jumps with the wall clock.
type Clock interface {
	// Now returns a time with a monotonic reading, as time.Now does.
	Now() time.Time
	// Slept returns for how long the machine was suspended in total, which a monotonic clock
	// omits.
	Slept() time.Duration
}

// Instant is a moment on a clock. The zero Instant is unset.
type Instant struct {
	clock Clock
	at    time.Time
	slept time.Duration
}

// Now returns this moment on the system's clock, which continues while the machine is
// suspended. A store calls it just before it sends a request that sets a deadline at a
// server.
func Now() Instant { return NowOn(systemClock{}) }

// NowInProcess returns this moment on the process's clock, which stops while the machine is
// suspended. It is for stores whose clock stops as well, or whose grants have no deadline.
func NowInProcess() Instant { return Instant{clock: processClock{}, at: time.Now()} }

// NowOn returns this moment on a clock of the caller, for tests.
func NowOn(c Clock) Instant {
	// Slept before Now: the time between the two readings then shortens the validity, and
	// never extends it.
	slept := c.Slept()
	return Instant{clock: c, at: c.Now(), slept: slept}
}

// IsZero reports whether the instant is unset.
func (i Instant) IsZero() bool { return i.clock == nil }

// Time returns the instant as a time with a monotonic reading.
func (i Instant) Time() time.Time { return i.at }

// Elapsed returns the time since the instant, including suspended time, and for how much of
// it the machine was suspended.
func (i Instant) Elapsed() (total, slept time.Duration) {
	switch i.clock.(type) {
	case nil:
		return Forever, 0
	case processClock: // the common case reads one clock; Now reads two
		return time.Since(i.at), 0
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
