package check

import "golang.org/x/sys/unix"

// machineClock runs through a suspended machine, as the library's trust does.
const machineClock = unix.CLOCK_BOOTTIME
