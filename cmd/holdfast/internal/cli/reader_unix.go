//go:build unix

package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// awaitReaderGone returns errPipe when f is a pipe or a socket without a reader, and nil
// when ctx ends.
func awaitReaderGone(ctx context.Context, f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
		<-ctx.Done()
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} // without events, poll reports only errors and the end
	for ctx.Err() == nil {
		// Poll does not watch ctx. So it returns after 100 ms, and the loop checks ctx.
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
