package driver

import "golang.org/x/sys/unix"

// Both clocks are adjusted in the same way while the machine runs, so that only a suspend
// changes their difference.
const (
	runningClock  = unix.CLOCK_BOOTTIME
	stoppingClock = unix.CLOCK_MONOTONIC
)
