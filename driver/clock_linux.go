package driver

import "golang.org/x/sys/unix"

// Both are adjusted in the same way while the machine runs, so that their difference
// changes by a suspend alone.
const (
	runningClock  = unix.CLOCK_BOOTTIME
	stoppingClock = unix.CLOCK_MONOTONIC
)
