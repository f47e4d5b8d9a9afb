//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Backup copies the server's data into a new directory. The server keeps running, so the
// last transactions may be missing.
func (z *ZooKeeper) Backup(to string) error {
	from := filepath.Join(z.cfg.Dir, "data")
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server has renamed or removed it meanwhile
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(path, ".pid") {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
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

// restartTimeout limits one start of a server with data. A server whose sessions expire at
// its start sometimes stops serving and keeps running.
const restartTimeout = 20 * time.Second

// Restart restarts the server up to three times, until it serves.
func (z *ZooKeeper) Restart(ctx context.Context) (err error) {
	for range 3 {
		try, cancel := context.WithTimeout(ctx, restartTimeout)
		err = z.Server.Restart(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}
