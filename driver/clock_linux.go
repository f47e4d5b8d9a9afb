package driver

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended compares the clock that runs through a suspend with the one that
// does not. Both are read from the kernel, so that the difference holds also
// where a test has replaced the process's own notion of time.
func suspended() time.Duration { return between(unix.CLOCK_BOOTTIME, unix.CLOCK_MONOTONIC) }
