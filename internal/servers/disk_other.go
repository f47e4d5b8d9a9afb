//go:build darwin

package servers

// Disk stalls the syncs of a server on Linux. On this system it does nothing.
type Disk struct{}

// NewDisk returns ErrNoDisk.
func NewDisk() (*Disk, error) { return nil, ErrNoDisk }

// Command returns the command unchanged.
func (d *Disk) Command(command []string) []string { return command }

// Stall does nothing.
func (d *Disk) Stall() {}

// Resume does nothing.
func (d *Disk) Resume() {}

// Close does nothing.
func (d *Disk) Close() {}
