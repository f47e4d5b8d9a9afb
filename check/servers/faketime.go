//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// libfaketime returns the path of libfaketime. The error wraps ErrNotInstalled.
func libfaketime() (string, error) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("%w: libfaketime", ErrNotInstalled)
}

// FakeClock restarts the server with a clock that SetClock sets.
func (s *Server) FakeClock(ctx context.Context) error {
	library, err := libfaketime()
	if err != nil {
		return err
	}
	s.clock = s.cfg.Dir + ".clock"
	if err := s.SetClock(0); err != nil {
		return err
	}
	// The C library precedes a server's own allocator. Some allocators read the time before
	// libfaketime is ready.
	s.cfg.Env = append(s.cfg.Env, "LD_PRELOAD="+library+" libc.so.6", "FAKETIME_TIMESTAMP_FILE="+s.clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	return s.Restart(ctx)
}

// SetClock sets a server's clock ahead of the machine's, or behind it by a negative duration.
func (s *Server) SetClock(ahead time.Duration) error {
	if s.clock == "" {
		return errors.New("servers: no FakeClock")
	}
	temporary := s.clock + ".new"
	if err := os.WriteFile(temporary, fmt.Appendf(nil, "%+.3f\n", ahead.Seconds()), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, s.clock)
}
