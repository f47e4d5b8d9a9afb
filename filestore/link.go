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
)

// The kinds of messages between sessions.
const (
	// msgHello opens a connection and names the session of the dialling process.
	msgHello byte = 'h'
	// msgGrant: the request is granted, with this token and mark.
	msgGrant byte = 'g'
	// msgLook: what the waiter watches has changed; it checks by itself.
	msgLook byte = 'l'
	// msgEnd: an operator requests the holder of this token to end.
	msgEnd byte = 'a'
)

// maxIdle is the number of idle connections that stay open, because two sessions that compete for a
// name soon communicate again.
const maxIdle = 8

// link is a connection between two sessions. Both ends may send, and its end shows each that the
// other may have died.
type link struct {
	sid  string
	conn *net.UnixConn
	raw  syscall.RawConn
	// Guarded by the store's mutex.
	watchers map[*waiter]struct{}
	dialled  bool
}

func frame(b []byte, n notice, text string) []byte {
	b = append(b, byte(len(text)), n.kind)
	b = binary.LittleEndian.AppendUint64(b, n.token)
	b = binary.LittleEndian.AppendUint32(b, uint32(n.mark))
	return append(b, text...)
}

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
			// Most likely there are no free descriptors. Peers check by themselves meanwhile.
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
	if !l.dialled {
		if !s.track(l) {
			return
		}
		n, err := readFrame(r)
		if err != nil || n.kind != msgHello {
			return
		}
		if len(n.id) == sidLen { // otherwise the peer has no session and only sends
			s.mu.Lock()
			l.sid = n.id
			if s.links[l.sid] == nil {
				s.links[l.sid] = l
			}
			s.mu.Unlock()
		}
	}
	for {
		n, err := readFrame(r)
		if err != nil {
			return
		}
		s.handle(n)
	}
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
		w.wakeUp()
	}
}

func (s *Store) linkedTo(sid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links[sid] != nil
}

// dial connects to a session and sends a hello together with more. It returns nil if the session
// cannot be reached.
func (s *Store) dial(sid string, more []byte) *link {
	sess := s.sess.Load()
	hello, dir := "", (*os.File)(nil)
	if sess != nil {
		hello, dir = sess.sid, sess.dir
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
	if !l.send(append(frame(nil, notice{kind: msgHello}, hello), more...)) || !s.track(l) {
		conn.Close()
		return nil
	}
	s.mu.Lock()
	if s.links[sid] == nil {
		s.links[sid] = l
	} else {
		s.rest(l) // another goroutine was faster
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
			// From package syscall, like the reader's, because the race detector handles such a pair.
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
		l.conn.Close() // after nothing or half a message; its reader ends the link
	}
	return err == nil && sent == len(b)
}

// watch lets the end of a session wake the waiter. It returns false if the session cannot be reached,
// and so has probably ended.
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

// unwatch ends watching, except for the sessions in keep.
func (s *Store) unwatch(w *waiter, keep []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.links = slices.DeleteFunc(w.links, func(l *link) bool {
		if slices.Contains(keep, l.sid) && s.links[l.sid] == l {
			return false
		}
		delete(l.watchers, w)
		s.rest(l)
		return true
	})
}

// rest keeps an unwatched connection as an idle one.
func (s *Store) rest(l *link) {
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
			s.rest(l)
			s.mu.Unlock()
		} else {
			// If the session is dead, the next waiter is served; if not, it checks by itself.
			s.suspect(n.sid, b)
		}
	}
}

func (s *Store) handle(n notice) {
	if n.kind == msgEnd {
		s.lose(n.id, n.token, driver.CauseTaken, errAsked)
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
	w.wakeUp()
}
