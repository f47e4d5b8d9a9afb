package check

import "golang.org/x/sys/unix"

// machineClock goes on while the machine is suspended: on macOS the monotonic clock does.
const machineClock = unix.CLOCK_MONOTONIC
