//go:build !unix

package cli

import (
	"context"
	"os"
)

// awaitReaderGone waits until ctx ends. On this system only the next write detects that the reader
// has closed the output.
func awaitReaderGone(ctx context.Context, _ *os.File) error {
	<-ctx.Done()
	return nil
}
