//go:build linux || darwin

package filestore

import (
	"slices"

	"golang.org/x/sys/unix"
)

// NoFallback makes the waiters of a store rely on events only.
func (s *Store) NoFallback() { s.fallback = 0 }

// PretendBoot changes the boot ID of the store, as a reboot of the machine does.
func (s *Store) PretendBoot() { s.boot[0]++ }

// PretendNow replaces the clock from which new counters start.
func (s *Store) PretendNow(now int64) { s.now = func() int64 { return now } }

// OnSync makes the store call f instead of fdatasync. f gets the ceiling that fdatasync would make
// durable.
func (s *Store) OnSync(f func(ceiling uint64) error) {
	s.sync = func(fd int) error {
		page := make([]byte, headerLen)
		if _, err := unix.Pread(fd, page, 0); err != nil {
			return err
		}
		h, _ := parseHeader(page)
		return f(h.ceiling)
	}
}

// BucketPath returns the path of the file of a name.
func (s *Store) BucketPath(name string) string { return s.bucketOf(name).path }

// SessionPath returns the path of the session's file, or "" before there is one.
func (s *Store) SessionPath() string {
	if sess := s.sess.Load(); sess != nil {
		return sess.path
	}
	return ""
}

// StallBucket locks the file of a name until the test calls resume, like a process that is stopped in
// its critical section.
func (s *Store) StallBucket(name string) (resume func(), err error) {
	b := s.bucketOf(name)
	fd, err := open(b.path, unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(fd, unix.LOCK_EX); err != nil {
		return nil, err
	}
	return func() { unix.Close(fd) }, nil
}

// Entries counts the entries of a bucket's file.
func Entries(raw []byte) (int, error) {
	h, ok := parseHeader(raw)
	if !ok || h.off+h.length > uint64(len(raw)) {
		return 0, errDamaged
	}
	es, err := parseBody(nil, string(raw[h.off:h.off+h.length]), h.sum)
	return len(es), err
}

// Watches reports whether the store has a connection to the session of another store, and so sees its
// end.
func (s *Store) Watches(other *Store) bool { return s.linkedTo(other.sess.Load().sid) }

// Links returns the number of sessions to which the store has a connection.
func (s *Store) Links() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.links)
}

// Dial connects to the session of another store, as a waiter does to be notified of its end.
func (s *Store) Dial(other *Store) bool { return s.dial(other.sess.Load().sid, nil) != nil }

// Unkept returns the number of connections that the store has dialled but neither uses nor keeps as
// idle, so that it would never close them.
func (s *Store) Unkept() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.conns {
		if l.dialled && s.links[l.sid] != l && !slices.Contains(s.idle, l) {
			n++
		}
	}
	return n
}

// Closing returns a channel that is closed when Close has begun.
func (s *Store) Closing() <-chan struct{} { return s.done }
