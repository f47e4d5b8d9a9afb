//go:build unix

package sqlitestore

import (
	"time"

	"golang.org/x/sys/unix"
)

// now returns the time by the clock of the machine, which all clients of the file share. A test with a fake clock of
// its own cannot change it.
func now() (time.Time, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &t); err != nil {
		return time.Time{}, beforeCommit(err)
	}
	return time.Unix(t.Unix()), nil
}
