//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// FakeClock restarts the server with a clock that SetClock sets. Some servers end at their
// start with libfaketime, for example one with a C library of its own. FakeClock restarts
// such a server without libfaketime, and its error wraps ErrNotInstalled.
func (s *Server) FakeClock(ctx context.Context) error {
	library, err := libfaketime()
	if err != nil {
		return err
	}
	s.clock = s.cfg.Dir + ".clock"
	if err := s.SetClock(0); err != nil {
		return err
	}
	// libc.so.6 is listed so that its allocator precedes the server's own. Some allocators
	// read the time before libfaketime is ready.
	s.env = slices.Clip(s.cfg.Env)
	s.cfg.Env = append(s.env, "LD_PRELOAD="+library+" libc.so.6", "FAKETIME_TIMESTAMP_FILE="+s.clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	err = s.Restart(ctx)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	if again := s.TrueClock(ctx); again != nil {
		return errors.Join(err, again)
	}
	return fmt.Errorf("%w: a libfaketime that works with this server: %w", ErrNotInstalled, err)
}

// TrueClock restarts the server with the machine's clock, after FakeClock.
func (s *Server) TrueClock(ctx context.Context) error {
	s.cfg.Env, s.clock = s.env, ""
	return s.Restart(ctx)
}

// SetClock sets a server's clock ahead of the machine's. A negative duration sets it
// behind.
func (s *Server) SetClock(ahead time.Duration) error {
	if s.clock == "" {
		return errors.New("servers: no FakeClock")
	}
	temporary := s.clock + ".new"
	if err := os.WriteFile(temporary, fmt.Appendf(nil, "%+.3f\n", ahead.Seconds()), 0o644); err != nil { // the server may have another user
		return err
	}
	return os.Rename(temporary, s.clock)
}
