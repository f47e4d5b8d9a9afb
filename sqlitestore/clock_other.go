//go:build !unix

package sqlitestore

import "time"

// now returns the time by the clock of the machine, which all clients of the file share.
func now() (time.Time, error) { return time.Now(), nil }
