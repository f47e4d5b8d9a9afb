//go:build linux || darwin

package filestore

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// The kinds of messages between sessions. Other users of a shared directory can forge each of them, so a
// message only makes its receiver read the bucket. A message of another kind counts as msgReread.
const (
	// msgReread notifies a waiter that its request is granted, or that the sessions to watch have changed.
	msgReread byte = 'l'
	// msgEnd notifies a holder that an operator requests it to end.
	msgEnd byte = 'a'
)

// maxIdle is the number of idle connections that a store keeps open. Two sessions that compete for a
// name usually need their connection again soon.
const maxIdle = 8

// link is a connection to a session. The process that dialled it sends messages. When the connection ends, it
// checks whether the other process has died.
type link struct {
	sid  string // the dialled session, or "" for a connection that this process has accepted
	conn *net.UnixConn
	raw  syscall.RawConn
	// The store's mutex guards watchers.
	watchers map[*waiter]struct{}
}

// frame returns a message: the length of the request's ID, the kind, and the ID.
func frame(kind byte, id string) []byte { return append([]byte{byte(len(id)), kind}, id...) }

// readFrame reads a message.
func readFrame(r io.Reader) (kind byte, id string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, "", err
	}
	text := make([]byte, head[0])
	_, err = io.ReadFull(r, text)
	return head[1], string(text), err
}

// listen accepts connections until the session ends.
func (s *store) listen(sess *session) {
	for {
		conn, err := sess.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// The usual cause is that no descriptor is free. Meanwhile the waiters of other
			// processes check by themselves.
			if backoff.Sleep(s.calls.Ctx, 50*time.Millisecond) != nil {
				return
			}
			continue
		}
		l, err := s.newLink("", conn)
		if err != nil {
			conn.Close()
			continue
		}
		if !s.track(l) {
			continue
		}
		if !s.tasks.Go(func() { s.serve(l) }) {
			s.unlink(l)
		}
	}
}

func (s *store) newLink(sid string, conn *net.UnixConn) (*link, error) {
	raw, err := conn.SyscallConn()
	return &link{sid: sid, conn: conn, raw: raw, watchers: map[*waiter]struct{}{}}, err
}

// serve reads from a connection until it ends.
func (s *store) serve(l *link) {
	defer s.unlink(l)
	r := bufio.NewReaderSize(l.conn, 512)
	for {
		kind, id, err := readFrame(r)
		if err != nil {
			return
		}
		if l.sid == "" {
			s.handle(kind, id)
		}
	}
}

// track registers a connection so that Close can end it.
func (s *store) track(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls.Stopped() {
		l.conn.Close()
		return false
	}
	s.conns[l] = struct{}{}
	return true
}

// unlink removes a connection that has ended, and wakes the waiters that watch it.
func (s *store) unlink(l *link) {
	l.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, l)
	if s.links[l.sid] == l {
		delete(s.links, l.sid)
	}
	s.idle = slices.DeleteFunc(s.idle, func(i *link) bool { return i == l })
	for w := range l.watchers {
		wakeup.Send(w.wake)
	}
}

func (s *store) linkedTo(sid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links[sid] != nil
}

// dial connects to a session, and sends a message unless that is nil. It returns nil if it cannot reach the session.
func (s *store) dial(sid string, msg []byte) *link {
	conn, err := s.dialSocket(sid)
	if err != nil {
		return nil
	}
	l, err := s.newLink(sid, conn)
	if err != nil {
		conn.Close()
		return nil
	}
	if !l.send(msg) || !s.track(l) {
		conn.Close()
		return nil
	}
	s.mu.Lock()
	if s.links[sid] == nil {
		s.links[sid] = l
	} else {
		s.keepIdle(l) // another goroutine has dialled the same session first
	}
	s.mu.Unlock()
	if !s.tasks.Go(func() { s.serve(l) }) {
		s.unlink(l)
		return nil
	}
	return l
}

// send writes without waiting, so that a stopped peer does not block this process.
func (l *link) send(b []byte) bool {
	sent := 0
	err := l.raw.Write(func(fd uintptr) bool {
		for sent < len(b) {
			// The reader also uses package syscall. The race detector then sees that the write
			// happens before the read.
			n, err := syscall.Write(int(fd), b[sent:])
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				break
			}
			sent += n
		}
		return true
	})
	if err == nil && sent < len(b) {
		l.conn.Close() // the message was not sent, or only a part; the reading goroutine then ends the link
	}
	return err == nil && sent == len(b)
}

// watch makes the end of a session wake the waiter. It returns false if it cannot reach the session,
// which has then probably ended.
func (s *store) watch(w *waiter, sid string) bool {
	if s.isOwn(sid) {
		return true
	}
	for range 2 {
		s.mu.Lock()
		if l := s.links[sid]; l != nil {
			if _, already := l.watchers[w]; !already {
				l.watchers[w] = struct{}{}
				w.links = append(w.links, l)
				s.idle = slices.DeleteFunc(s.idle, func(i *link) bool { return i == l })
			}
			s.mu.Unlock()
			return true
		}
		s.mu.Unlock()
		if s.dial(sid, nil) == nil {
			return false
		}
	}
	// The connection ended at once.
	return false
}

// unwatch makes the waiter watch no session any more, except those in keep.
func (s *store) unwatch(w *waiter, keep []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.links = slices.DeleteFunc(w.links, func(l *link) bool {
		if slices.Contains(keep, l.sid) && s.links[l.sid] == l {
			return false
		}
		delete(l.watchers, w)
		s.keepIdle(l)
		return true
	})
}

// keepIdle keeps a connection that no waiter watches as an idle one. It closes the oldest idle connection
// if there are too many. The caller holds the store's mutex.
func (s *store) keepIdle(l *link) {
	if _, open := s.conns[l]; !open || len(l.watchers) > 0 || slices.Contains(s.idle, l) {
		return
	}
	if s.idle = append(s.idle, l); len(s.idle) > maxIdle {
		s.idle[0].conn.Close()
		s.idle = s.idle[1:]
	}
}

// notify sends the notices of a change.
func (s *store) notify(b *bucket, notices []notice) {
	for _, n := range notices {
		if s.isOwn(n.sid) {
			s.handle(n.kind, n.id)
			continue
		}
		s.mu.Lock()
		l := s.links[n.sid]
		s.mu.Unlock()
		msg := frame(n.kind, n.id)
		if l != nil && l.send(msg) {
			continue
		}
		if l = s.dial(n.sid, msg); l != nil {
			s.mu.Lock()
			s.keepIdle(l)
			s.mu.Unlock()
		} else {
			// If the session is dead, the store removes its entries, and the next waiter gets the
			// lock. If the session lives, its waiter checks by itself.
			s.cleanDeadSession(n.sid, b)
		}
	}
}

// handle handles a message of another process, or of this one.
func (s *store) handle(kind byte, id string) {
	s.mu.Lock()
	if w := s.waiting[id]; w != nil {
		wakeup.Send(w.wake)
	}
	s.mu.Unlock()
	if h := s.held.Get(id); h != nil && kind == msgEnd {
		ctx, cancel := context.WithTimeout(s.calls.Ctx, noticeTimeout-checkInterval)
		defer cancel()
		g := h.Handle.(*grant)
		s.checkBucket(ctx, g.b, []*grant{g})
	}
}
