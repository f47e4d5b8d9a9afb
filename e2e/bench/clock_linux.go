package main

import "golang.org/x/sys/unix"

// monotonic returns the nanoseconds of a clock that all processes of the machine share.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}
