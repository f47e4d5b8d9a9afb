//go:build !linux

package cli

import (
	"context"
	"net"
)

func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", address)
}
