package filestore

// FileSystem is what Open finds out by the type that statfs reports.
var FileSystem = fileSystem
