//go:build linux || darwin

package driver

import (
	"time"

	"golang.org/x/sys/unix"
)

// between reads the running clock first: a pause between the two readings makes
// the difference smaller, which Elapsed's floor absorbs.
func between(running, stopping int32) time.Duration {
	var r, s unix.Timespec
	if unix.ClockGettime(running, &r) != nil || unix.ClockGettime(stopping, &s) != nil {
		return 0
	}
	return time.Duration(r.Nano() - s.Nano())
}
