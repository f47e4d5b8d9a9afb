//go:build linux || darwin

package filesystem

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/examine"
)

// read adds the space of a file system to facts. A file system without a limit of files, such as btrfs, has 0 of them.
func read(dir string, f examine.Facts) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	f["number of free bytes"] = strconv.FormatUint(st.Bavail*uint64(st.Bsize), 10)
	if st.Files > 0 {
		f["number of free inodes"] = strconv.FormatUint(st.Ffree, 10)
	}
	return readMount(dir, f)
}
