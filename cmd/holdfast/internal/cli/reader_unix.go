//go:build unix

package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// awaitReaderGone answers errPipe when f is a pipe or a socket that nobody reads
// any more, and nil when ctx ends.
func awaitReaderGone(ctx context.Context, f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
		<-ctx.Done()
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} // no events: only the end is told
	for ctx.Err() == nil {
		// The timeout is for ctx, which no poll sees.
		n, err := unix.Poll(fds, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			<-ctx.Done()
			return nil
		}
		if n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
			return errPipe
		}
	}
	return nil
}
