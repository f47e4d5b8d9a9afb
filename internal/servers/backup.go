//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// Backup copies the server's directory "data" at one moment into a new directory.
func (s *Server) Backup(to string) error {
	if err := s.Pause(); err != nil {
		return err
	}
	err := os.CopyFS(to, os.DirFS(filepath.Join(s.cfg.Dir, "data")))
	return errors.Join(err, s.Cont())
}

// Restore kills the server, replaces its directory "data" with a backup, and starts the server
// again. It keeps the backup, so that the caller can restore it again.
func (s *Server) Restore(ctx context.Context, from string) error {
	s.Kill()
	data := filepath.Join(s.cfg.Dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := os.CopyFS(data, os.DirFS(from)); err != nil {
		return err
	}
	return s.Restart(ctx)
}
