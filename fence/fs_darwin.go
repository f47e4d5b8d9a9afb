package fence

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFilesystem refuses network file systems, on which flock may be local to
// the host while the files are shared.
func checkFilesystem(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, dir, err)
	}
	if st.Flags&unix.MNT_LOCAL == 0 {
		return fmt.Errorf("%w: %s is on a network file system", ErrUnsupported, dir)
	}
	return nil
}
