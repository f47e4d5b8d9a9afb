package filesystem

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// localTypes contains the file systems whose files and flocks belong to one machine, by the type
// that statfs returns. Every other file system counts as not local.
var localTypes = map[uint32]string{
	unix.BCACHEFS_SUPER_MAGIC:  "bcachefs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.EXT4_SUPER_MAGIC:      "ext4", // ext2 and ext3 as well
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	0x3153464a:                 "jfs",
	0x72b6:                     "jffs2",
	unix.NILFS_SUPER_MAGIC:     "nilfs2",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.REISERFS_SUPER_MAGIC:  "reiserfs",
	unix.TMPFS_MAGIC:           "tmpfs",
	0x24051905:                 "ubifs",
	unix.XFS_SUPER_MAGIC:       "xfs",
	0x2fc12fc1:                 "zfs",
}

// otherTypes contains the names of other file systems, for messages and for the options that allow them. A
// file system that is in no map has the number of its type as its name.
var otherTypes = map[uint32]string{
	unix.AFS_SUPER_MAGIC:   "afs",
	unix.AFS_FS_MAGIC:      "afs",
	0x19830326:             "beegfs",
	unix.CEPH_SUPER_MAGIC:  "ceph",
	unix.CODA_SUPER_MAGIC:  "coda",
	unix.EXFAT_SUPER_MAGIC: "exfat",
	unix.FUSE_SUPER_MAGIC:  "fuse",
	0x01161970:             "gfs2",
	0x47504653:             "gpfs",
	0x0bd00bd0:             "lustre",
	unix.NFS_SUPER_MAGIC:   "nfs",
	0x7366746e:             "ntfs3",
	unix.OCFS2_SUPER_MAGIC: "ocfs2",
	0x20030528:             "orangefs",
	unix.PROC_SUPER_MAGIC:  "proc",
	unix.CIFS_SUPER_MAGIC:  "smb",
	unix.SMB_SUPER_MAGIC:   "smb",
	unix.SMB2_SUPER_MAGIC:  "smb",
	unix.V9FS_MAGIC:        "9p",
	0x786f4256:             "vboxsf",
	unix.MSDOS_SUPER_MAGIC: "vfat",
	0xbacbacbc:             "vmhgfs",
}

func of(dir string) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false, err
	}
	// The type of this field depends on the architecture.
	name, local = byType(uint32(st.Type))
	return name, local, nil
}

func byType(kind uint32) (name string, local bool) {
	if name, local = localTypes[kind]; local {
		return name, true
	}
	if name = otherTypes[kind]; name == "" {
		name = fmt.Sprintf("%#08x", kind)
	}
	return name, false
}
