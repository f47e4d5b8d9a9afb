//go:build !unix

package cli

import (
	"context"
	"os"
)

// awaitReaderGone cannot tell here: the next write does.
func awaitReaderGone(ctx context.Context, _ *os.File) error {
	<-ctx.Done()
	return nil
}
