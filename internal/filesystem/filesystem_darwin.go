package filesystem

import (
	"slices"

	"golang.org/x/sys/unix"
)

// localTypes contains the file systems whose files and flocks belong to one machine.
var localTypes = []string{"apfs", "hfs", "tmpfs"}

func of(dir string) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false, err
	}
	name = unix.ByteSliceToString(st.Fstypename[:])
	return name, st.Flags&unix.MNT_LOCAL != 0 && slices.Contains(localTypes, name), nil
}
