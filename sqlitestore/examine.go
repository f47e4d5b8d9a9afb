package sqlitestore

import (
	"context"
	"path/filepath"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/filesystem"
)

// Checks implements driver.Examiner.
func (s file) Checks() []driver.Check { return filesystem.Checks.Checks() }

// Examine implements driver.Examiner: it examines the file system of the file.
func (s file) Examine(ctx context.Context) ([]driver.Finding, error) {
	var path string
	if err := s.db.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path); err != nil {
		return nil, beforeCommit(err)
	}
	f, err := filesystem.Read(filepath.Dir(path))
	if err != nil {
		return nil, beforeCommit(err)
	}
	return filesystem.Checks.Find(f), nil
}
