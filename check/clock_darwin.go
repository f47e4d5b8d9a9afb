package check

import "golang.org/x/sys/unix"

// machineClock runs through a suspended machine: on macOS the monotonic clock
// does.
const machineClock = unix.CLOCK_MONOTONIC
