package filesystem

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestOnlyKnownFileSystemsAreLocal requires that a file system counts as local only if localTypes
// contains it. A file system without a name in this package does not count as local.
func TestOnlyKnownFileSystemsAreLocal(t *testing.T) {
	for kind, want := range map[uint32]struct {
		name  string
		local bool
	}{
		0xef53:     {"ext4", true},
		0x58465342: {"xfs", true},
		0x9123683e: {"btrfs", true},
		0x01021994: {"tmpfs", true},
		0x794c7630: {"overlay", true},
		0x2fc12fc1: {"zfs", true},
		0x6969:     {"nfs", false},
		0xff534d42: {"smb", false},
		0x65735546: {"fuse", false},     // sshfs, s3fs, GlusterFS, virtiofs
		0x47504653: {"gpfs", false},     // IBM Storage Scale
		0x20030528: {"orangefs", false}, // PVFS2
		0x786f4256: {"vboxsf", false},   // a folder shared by VirtualBox
		0xbacbacbc: {"vmhgfs", false},   // a folder shared by VMware
		0x19830326: {"beegfs", false},
		0xaad7aaea: {"0xaad7aaea", false}, // PanFS
		0x564c:     {"0x0000564c", false}, // NCP
		0:          {"0x00000000", false},
	} {
		if name, local := byType(kind); name != want.name || local != want.local {
			t.Errorf("%#x: %q, local %t; want %q, local %t", kind, name, local, want.name, want.local)
		}
	}
}

// TestOtherKindIsFound requires a finding for a file system that is not known to be local.
func TestOtherKindIsFound(t *testing.T) {
	f, err := Read("/proc")
	must.Succeed(t, err)
	found := Checks.Find(f)
	if len(found) == 0 || found[len(found)-1].Name != "filesystem" || found[len(found)-1].Evidence != "the directory is on proc" {
		t.Errorf("%+v", found)
	}
}
