package driver

import "golang.org/x/sys/unix"

// Neither clock is adjusted while the machine runs, so that only a suspend changes their
// difference.
const (
	runningClock  = unix.CLOCK_MONOTONIC_RAW
	stoppingClock = unix.CLOCK_UPTIME_RAW
)
