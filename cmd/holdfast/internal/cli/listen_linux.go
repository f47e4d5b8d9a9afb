package cli

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clientTimeout is after what time a client whose machine no longer answers is gone.
const clientTimeout = 30 * time.Second

// listen listens on an address. The kernel repeats unacknowledged data for a quarter of an hour by itself. The locks
// of a machine that has gone would be held as long.
func listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if e := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(clientTimeout.Milliseconds()))
		}); e != nil {
			return e
		}
		return err
	}}
	return config.Listen(ctx, "tcp", address)
}
