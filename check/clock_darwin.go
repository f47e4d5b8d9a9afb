package check

import "golang.org/x/sys/unix"

// machineClock continues while the machine is suspended, as the monotonic clock of macOS does.
const machineClock = unix.CLOCK_MONOTONIC
