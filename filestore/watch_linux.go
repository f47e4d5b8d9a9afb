package filestore

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// changes returns a channel that gets a value after writes to a bucket, or to any bucket if b is nil. The
// channel is nil if the kernel provides no watch; the callers then poll.
func (s *store) changes(b *bucket) (c <-chan struct{}, stop func()) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, func() {}
	}
	if s.addWatch(fd, b) != nil {
		unix.Close(fd)
		return nil, func() {}
	}
	f := os.NewFile(uintptr(fd), "inotify")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, func() {}
	}
	ch := make(chan struct{}, 1)
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := f.Read(buf)
			if n <= 0 || err != nil {
				return
			}
			if b != nil {
				// Watch the file again: it may be a new one.
				raw.Control(func(fd uintptr) { s.addWatch(int(fd), b) })
			}
			wakeup.Send(ch)
		}
	})
	return ch, func() {
		f.Close()
		done.Wait()
	}
}

// addWatch makes an inotify descriptor report writes to a bucket, or to any bucket if b is nil.
func (s *store) addWatch(fd int, b *bucket) error {
	if b == nil {
		_, err := unix.InotifyAddWatch(fd, s.path(bucketsDir), unix.IN_DONT_FOLLOW|unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE)
		return err
	}
	_, err := unix.InotifyAddWatch(fd, b.path, unix.IN_DONT_FOLLOW|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
	if err == unix.ENOENT {
		// The bucket's file does not exist yet, or was replaced. So watch its directory.
		_, err = unix.InotifyAddWatch(fd, s.path(bucketsDir), unix.IN_DONT_FOLLOW|unix.IN_CREATE|unix.IN_MOVED_TO)
	}
	return err
}
