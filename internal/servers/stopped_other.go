//go:build !linux

package servers

// awaitStopped does nothing on this system.
func awaitStopped(int) {}
