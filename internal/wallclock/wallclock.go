// Package wallclock is the clock of schedules, which a test can set wrong: replicas have
// different clocks, and tests run on one machine.
package wallclock

import (
	"sync/atomic"
	"time"
)

var ahead atomic.Int64

// Now returns the time of day.
func Now() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }

// Set sets for how much the clock of this process is ahead. It is for tests.
func Set(d time.Duration) { ahead.Store(int64(d)) }
