package driver

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended compares the two: on macOS CLOCK_MONOTONIC runs through a sleep and
// CLOCK_UPTIME_RAW does not.
func suspended() time.Duration { return between(unix.CLOCK_MONOTONIC, unix.CLOCK_UPTIME_RAW) }
