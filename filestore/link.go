//go:build linux || darwin

package filestore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// The kinds of messages between sessions.
const (
	// msgHello is the first message of a connection. It names the session of the process that
	// dialled.
	msgHello byte = 'h'
	// msgGrant notifies a waiter that its request is granted, with this token and mark.
	msgGrant byte = 'g'
	// msgReread notifies a waiter that the sessions to watch have changed. The waiter then reads the
	// bucket.
	msgReread byte = 'l'
	// msgEnd notifies the holder of this token that an operator requests it to end.
	msgEnd byte = 'a'
)

// maxIdle is the number of idle connections that a store keeps open. Two sessions that compete for a
// name usually need their connection again soon.
const maxIdle = 8

// link is a connection between two sessions. Both processes may send. When the connection ends, each
// process checks whether the other one has died.
type link struct {
	sid  string
	conn *net.UnixConn
	raw  syscall.RawConn
	// The store's mutex guards these fields.
	watchers map[*waiter]struct{}
	dialled  bool
}

// frame appends a message to b: the length of the text, the kind, 8 bytes of the token, 4 bytes of the
// mark, and the text. The text is a request's ID, or in msgHello a session, empty if there is none.
func frame(b []byte, n notice, text string) []byte {
	b = append(b, byte(len(text)), n.kind)
	b = binary.LittleEndian.AppendUint64(b, n.token)
	b = binary.LittleEndian.AppendUint32(b, uint32(n.mark))
	return append(b, text...)
}

// readFrame reads a message. The id of the notice is the text.
func readFrame(r *bufio.Reader) (n notice, err error) {
	var head [14]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return n, err
	}
	text := make([]byte, head[0])
	if _, err := io.ReadFull(r, text); err != nil {
		return n, err
	}
	return notice{
		kind: head[1], id: string(text), token: binary.LittleEndian.Uint64(head[2:]),
		mark: uint64(binary.LittleEndian.Uint32(head[10:])),
	}, nil
}

// listen accepts connections until the session ends.
func (s *Store) listen(sess *session) {
	for {
		conn, err := sess.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// The usual cause is that no descriptor is free. Meanwhile the waiters of other
			// processes check by themselves.
			if !s.pause() {
				return
			}
			continue
		}
		l, err := s.newLink("", conn)
		if err != nil {
			conn.Close()
			continue
		}
		if !s.spawn(func() { s.serve(l) }) {
			conn.Close()
		}
	}
}

func (s *Store) newLink(sid string, conn *net.UnixConn) (*link, error) {
	raw, err := conn.SyscallConn()
	return &link{sid: sid, conn: conn, raw: raw, watchers: map[*waiter]struct{}{}}, err
}

// serve reads from a connection until it ends.
func (s *Store) serve(l *link) {
	defer s.unlink(l)
	r := bufio.NewReaderSize(l.conn, 512)
	if !l.dialled && !s.accept(l, r) {
		return
	}
	for {
		n, err := readFrame(r)
		if err != nil {
			return
		}
		s.handle(n)
	}
}

// accept reads msgHello from a connection that the other process has dialled. It returns false if the
// connection has to end.
func (s *Store) accept(l *link, r *bufio.Reader) bool {
	if !s.track(l) {
		return false
	}
	n, err := readFrame(r)
	if err != nil || n.kind != msgHello {
		return false
	}
	if len(n.id) == sidLen { // otherwise the dialling process has no session and only sends
		s.mu.Lock()
		l.sid = n.id
		if s.links[l.sid] == nil {
			s.links[l.sid] = l
		}
		s.mu.Unlock()
	}
	return true
}

// track registers a connection so that Close can end it.
func (s *Store) track(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		l.conn.Close()
		return false
	}
	s.conns[l] = struct{}{}
	return true
}

// unlink removes a connection that has ended, and wakes the waiters that watch it.
func (s *Store) unlink(l *link) {
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

func (s *Store) linkedTo(sid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links[sid] != nil
}

// dial connects to a session, and sends msgHello and the messages in more. It returns nil if it
// cannot reach the session.
func (s *Store) dial(sid string, more []byte) *link {
	sess := s.sess.Load()
	var own string
	var dir *os.File
	if sess != nil {
		own, dir = sess.sid, sess.dir
	}
	if s.shorten && dir == nil {
		var err error
		if dir, err = os.Open(s.sessionsDir()); err != nil {
			return nil
		}
		defer dir.Close()
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: s.sockName(dir, sid)})
	if err != nil {
		return nil
	}
	l, err := s.newLink(sid, conn)
	if err != nil {
		conn.Close()
		return nil
	}
	l.dialled = true
	if !l.send(append(frame(nil, notice{kind: msgHello}, own), more...)) || !s.track(l) {
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
	if !s.spawn(func() { s.serve(l) }) {
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
func (s *Store) watch(w *waiter, sid string) bool {
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
func (s *Store) unwatch(w *waiter, keep []string) {
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
func (s *Store) keepIdle(l *link) {
	if _, open := s.conns[l]; !open || !l.dialled || len(l.watchers) > 0 || slices.Contains(s.idle, l) {
		return
	}
	if s.idle = append(s.idle, l); len(s.idle) > maxIdle {
		s.idle[0].conn.Close()
		s.idle = s.idle[1:]
	}
}

// notify sends the notices of a change.
func (s *Store) notify(b *bucket, notices []notice) {
	for _, n := range notices {
		if s.isOwn(n.sid) {
			s.handle(n)
			continue
		}
		s.mu.Lock()
		l := s.links[n.sid]
		s.mu.Unlock()
		msg := frame(nil, n, n.id)
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
func (s *Store) handle(n notice) {
	if n.kind == msgEnd {
		s.lose(n.id, n.token, driver.CauseTaken, errEndRequested)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[n.id]
	if w == nil {
		return
	}
	if n.kind == msgGrant && n.token > 0 && n.token < driver.MaxToken && n.mark <= driver.MaxLimit {
		s.granted(w, n.token, n.mark)
	}
	wakeup.Send(w.wake)
}
