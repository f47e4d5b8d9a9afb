//go:build linux || darwin

package servers

import "errors"

// ErrNoDisk means that this machine cannot stall the disk of a server. That needs Linux 5.5
// or later with seccomp's user notification.
var ErrNoDisk = errors.New("servers: a server's disk cannot be stalled here")
