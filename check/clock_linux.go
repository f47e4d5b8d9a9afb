package check

import "golang.org/x/sys/unix"

// machineClock continues while the machine is suspended, like the clock of the library's
// validity.
const machineClock = unix.CLOCK_BOOTTIME
