package driver

import "golang.org/x/sys/unix"

// Neither is adjusted while the machine runs, so that their difference changes by a
// suspend alone.
const (
	runningClock  = unix.CLOCK_MONOTONIC_RAW
	stoppingClock = unix.CLOCK_UPTIME_RAW
)
