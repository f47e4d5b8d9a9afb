package filestore

// FileSystem returns the name of the file system with a type that statfs reports, and whether it is
// local to this machine.
var FileSystem = fileSystem
