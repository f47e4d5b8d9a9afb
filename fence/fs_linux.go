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
	// The signedness and the width of the field depend on the architecture.
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return fmt.Errorf("%w: %s is on a network file system", ErrUnsupported, dir)
	}
	return nil
}
