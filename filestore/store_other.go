//go:build !linux && !darwin

package filestore

import (
	"context"
	"runtime"

	"github.com/holdfast-go/holdfast/driver"
)

// Store is one client of a directory of locks. On this system Open returns none.
type Store struct{ driver.Store }

// Open returns an error of code CodeUnsupported on this system: the store needs flock and Unix sockets
// as on Linux and macOS.
func Open(_ context.Context, dir string, options ...Option) (*Store, error) {
	if _, err := configure(options); err != nil {
		return nil, err
	}
	return nil, driver.Errorf(driver.CodeUnsupported, "filestore: locks in files (%s) need Linux or macOS, not %s: use a server's store", dir, runtime.GOOS)
}
