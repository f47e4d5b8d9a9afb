// Package filesystem identifies the file system of a directory, for locks on files: on a network file
// system, flock may be local to one machine while the files are shared.
package filesystem

// Of returns the file system of a directory, and whether it is known to be local to this machine. On
// systems other than Linux and macOS every file system counts as local, because these systems do not
// report its kind.
func Of(dir string) (name string, local bool, err error) { return of(dir) }
