//go:build !linux

package redis

import "time"

// monotonic is the system's clock, which all processes of the machine share.
func monotonic() int64 { return time.Now().UnixNano() }
