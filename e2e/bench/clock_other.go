//go:build !linux

package main

import "time"

// monotonic returns the time of the system's clock, which all processes of the machine
// share.
func monotonic() int64 { return time.Now().UnixNano() }
