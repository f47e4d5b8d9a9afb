//go:build linux || darwin

package filestore

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/filesystem"
)

// Checks implements driver.Examiner.
func (s *store) Checks() []driver.Check { return filesystem.Checks.Checks() }

// Examine implements driver.Examiner.
func (s *store) Examine(context.Context) ([]driver.Finding, error) {
	f, err := filesystem.Read(s.dir)
	if err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "filestore: %w", err)
	}
	return filesystem.Checks.Find(f), nil
}
