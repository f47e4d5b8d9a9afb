// Package filesystem identifies the file system of a directory, for locks on files: on a network file
// system, flock may be local to one machine while the files are shared.
package filesystem

import "github.com/holdfast-go/holdfast/driver"

// Of returns the file system of a directory, and whether it is known to be local to this machine. On
// systems other than Linux and macOS every file system counts as local, because these systems do not
// report its kind.
func Of(dir string) (name string, local bool, err error) { return of(dir) }

// Scope returns which processes share the locks in a directory. An overlay is the layer of a container: another
// container of the same image has a copy of its own. A directory that is mounted into a container has another file system.
func Scope(dir string) driver.Scope {
	if name, _, err := of(dir); err == nil && name == "overlay" {
		return driver.ScopeContainer
	}
	return driver.ScopeMachine
}
