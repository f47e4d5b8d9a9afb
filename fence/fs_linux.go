package fence

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFilesystem refuses file systems on which flock may be local to the host
// while the files are not.
func checkFilesystem(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, dir, err)
	}
	// The field is signed or not, and 32 or 64 bits wide, by architecture.
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return fmt.Errorf("%w: %s is on a network file system", ErrUnsupported, dir)
	}
	return nil
}
