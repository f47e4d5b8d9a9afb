//go:build linux || darwin

package filestore

import (
	"context"
	"hash/crc32"
	"slices"

	"golang.org/x/sys/unix"
)

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
	fd, err := unix.Open(b.path, unix.O_RDWR, 0)
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

// SetSocketMode sets the mode of the session's socket again.
func (s *Store) SetSocketMode() {
	sess := s.sess.Load()
	chmodSocket(sess.dir, sess.sid+".sock", s.fileMode())
}

// ForgeGrant writes a grant for a waiter's entry, whatever the limits are.
func (s *Store) ForgeGrant(name, id string) error {
	b := s.bucketOf(name)
	if err := b.lock(context.Background(), false); err != nil {
		return err
	}
	defer b.unlock()
	i := b.find(key{s.ns, name}, id)
	b.last++
	b.entries[i].token = b.last
	return b.write()
}

// ForgeSession writes another session into the first entry of a bucket's page.
func ForgeSession(page []byte, sid string) {
	forge(page, func(h *header, es []entry) { es[0].sid = sid })
}

// ForgeCounter writes another counter of tokens into a bucket's page.
func ForgeCounter(page []byte, last uint64) {
	forge(page, func(h *header, es []entry) { h.last = last })
}

func forge(page []byte, change func(*header, []entry)) {
	h, ok := parseHeader(page)
	es, err := parseBody(nil, string(page[h.off:h.off+h.length]), h.sum)
	if !ok || err != nil || h.off != inlineAt {
		panic("the page is damaged")
	}
	change(&h, es)
	body := page[inlineAt:inlineAt]
	for i := range es {
		body = appendEntry(body, &es[i])
	}
	h.length, h.sum = uint64(len(body)), crc32.Checksum(body, castagnoli)
	putHeader(page, &h)
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
		if l.sid != "" && s.links[l.sid] != l && !slices.Contains(s.idle, l) {
			n++
		}
	}
	return n
}

// Closing returns a channel that is closed when Close has begun.
func (s *Store) Closing() <-chan struct{} { return s.calls.Ctx.Done() }
