package filestore

// FileSystem returns the name of a file system for the type that statfs reports, and whether Open
// considers it local.
var FileSystem = fileSystem
