package filesystem

import "github.com/holdfast-go/holdfast/internal/examine"

const (
	littleSpace = 16 << 20 // bytes
	fewFiles    = 1000
)

// Checks are the checks of the file system of a directory. Read returns their facts.
var Checks = examine.Table{
	examine.Breaks("barrier", "a mount that flushes the disk", "after a power failure the fencing tokens, and what is on the "+
		"disk, may go back", "remount it without nobarrier", examine.Given("barrier")),
	examine.Costs("space", "16 MiB or more that are free", "a full file system refuses locks, and also some releases",
		"make space", examine.Below("number of free bytes", littleSpace)),
	examine.Costs("inodes", "1000 or more files that can be created", "without them each new lock is refused",
		"remove files, or make a file system with more inodes", examine.Below("number of free inodes", fewFiles)),
	examine.Note("filesystem", "a file system of this machine", "if another machine uses the directory, both hold one lock",
		"use a directory of this machine, or a server's store", examine.Given("filesystem")),
}

// Read returns the facts of the file system of a directory.
func Read(dir string) (examine.Facts, error) {
	name, local, err := Of(dir)
	if err != nil {
		return nil, err
	}
	f := examine.Facts{}
	if !local {
		f["filesystem"] = "the directory is on " + name
	}
	return f, read(dir, f)
}
