//go:build linux || darwin

package filestore

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// sidLen is the length of a session's name.
const sidLen = 16

// session is a Store's proof of life: a file it keeps locked, which the kernel
// unlocks when the process ends, however it ends. The socket beside it carries
// news; nothing is decided by what comes or fails to come over it.
type session struct {
	sid  string
	path string
	fd   int
	id   fileID
	dir  *os.File // of the sessions directory, for short names of sockets
	ln   *net.UnixListener
}

// current is the Store's session. The first request makes it; it is replaced
// when its file has been removed, since others then take it for dead.
func (s *Store) current() (*session, error) {
	if sess := s.sess.Load(); sess != nil && sess.linked() {
		return sess, nil
	}
	s.sessMu.Lock()
	defer s.sessMu.Unlock()
	if sess := s.sess.Load(); sess != nil {
		if sess.linked() {
			return sess, nil
		}
		s.abandon(sess)
	}
	sess, err := s.newSession()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.sids = append(s.sids, sess.sid)
	s.mu.Unlock()
	s.sess.Store(sess)
	s.spawn(func() { s.listen(sess) })
	s.spawn(s.sweep)
	return sess, nil
}

// linked tells whether others find the session where they look for it.
func (sess *session) linked() bool {
	var st unix.Stat_t
	err := stat(sess.path, &st)
	return err == nil && idOf(&st) == sess.id || err != nil && err != unix.ENOENT && err != unix.ENOTDIR
}

// abandon gives up a session whose file is gone: its grants may be granted to
// others from now on, and its waiters move to the next one.
func (s *Store) abandon(sess *session) {
	s.sess.CompareAndSwap(sess, nil)
	s.loseAll(func(h *held) bool { return h.sess == sess }, driver.CauseGone, errSession)
	s.end(sess)
	s.wakeAll()
}

// end closes a session; the process no longer counts as its holder.
func (s *Store) end(sess *session) {
	sess.ln.Close()
	os.Remove(sess.path + ".sock")
	os.Remove(sess.path)
	unix.Close(sess.fd)
	sess.dir.Close()
}

func (s *Store) sessionPath(sid string) string { return filepath.Join(s.sessionsDir(), sid) }

func (s *Store) newSession() (*session, error) {
	for {
		sess, err := s.trySession()
		if sess != nil || err != nil {
			return sess, err
		}
	}
}

// trySession answers neither if a sweeper was quicker: between its creation and
// its lock a session's file looks like that of a dead one.
func (s *Store) trySession() (*session, error) {
	var raw [sidLen * 5 / 8]byte
	rand.Read(raw[:])
	sid := strings.ToLower(base32.StdEncoding.EncodeToString(raw[:]))
	path := s.sessionPath(sid)
	fd, err := open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, uint32(s.fileMode()))
	if err == unix.ENOENT {
		// Somebody removed the whole directory.
		if err := s.layout(); err != nil {
			return nil, coded("creating", s.dir, err)
		}
		return nil, nil
	}
	if err == unix.EEXIST {
		return nil, nil
	}
	if err != nil {
		return nil, coded("creating", path, err)
	}
	keep := false
	defer func() {
		if !keep {
			os.Remove(path)
			unix.Close(fd)
		}
	}()
	if err := flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return nil, nil
	} else if err != nil {
		return nil, coded("locking", path, err)
	}
	var own, there unix.Stat_t
	if err := unix.Fstat(fd, &own); err != nil {
		return nil, coded("looking at", path, err)
	}
	if stat(path, &there) != nil || idOf(&own) != idOf(&there) {
		return nil, nil
	}
	unix.Fchmod(fd, uint32(s.fileMode()))
	about, err := json.Marshal(map[string]any{"pid": os.Getpid(), "host": s.host, "start": time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return nil, err
	}
	if _, err := pwrite(fd, append(about, '\n'), 0); err != nil {
		return nil, coded("writing", path, err)
	}
	dir, err := os.Open(s.sessionsDir())
	if err != nil {
		return nil, coded("opening", s.sessionsDir(), err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: s.sockName(dir, sid)})
	if err != nil {
		dir.Close()
		return nil, coded("listening on", path+".sock", err)
	}
	ln.SetUnlinkOnClose(false) // the name may be a short one; end removes it
	os.Chmod(path+".sock", s.fileMode())
	keep = true
	return &session{sid: sid, path: path, fd: fd, id: idOf(&own), dir: dir, ln: ln}, nil
}

// sockName is how this process names a session's socket to the kernel.
func (s *Store) sockName(dir *os.File, sid string) string {
	if s.shorten {
		return shortName(dir) + "/" + sid + ".sock"
	}
	return s.sessionPath(sid) + ".sock"
}

// dead proves that a session has ended: its file is gone, or nobody locks it.
// Provers lock shared, so that they do not take one another for the session.
func (s *Store) dead(sid string) bool {
	fd, dead := s.prove(sid)
	if fd >= 0 {
		unix.Close(fd)
	}
	return dead
}

// prove keeps the file it locked open, if there is one: a session that is just
// being made looks dead, and must not become alive between proof and burial.
func (s *Store) prove(sid string) (fd int, dead bool) {
	fd, err := open(s.sessionPath(sid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err == unix.ENOENT
	}
	if flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil {
		unix.Close(fd)
		return -1, false
	}
	return fd, true
}

func (s *Store) isOwn(sid string) bool {
	sess := s.sess.Load()
	return sess != nil && sess.sid == sid
}

// sweep finds the sessions that left something behind.
func (s *Store) sweep() {
	files, err := os.ReadDir(s.sessionsDir())
	if err != nil {
		return // reported by whoever needs the directory
	}
	var sids []string
	for _, f := range files {
		sid := strings.TrimSuffix(f.Name(), ".sock")
		if len(sid) == sidLen && !s.isOwn(sid) && (len(sids) == 0 || sids[len(sids)-1] != sid) {
			sids = append(sids, sid)
		}
	}
	// Some at a time: each keeps a descriptor meanwhile.
	for some := range slices.Chunk(sids, 64) {
		s.bury(some, nil)
	}
}

// suspect buries a session in the background, beginning at the bucket in which
// it stands in the way.
func (s *Store) suspect(sid string, b *bucket) {
	s.mu.Lock()
	known := s.buried[sid]
	s.buried[sid] = true
	s.mu.Unlock()
	if !known {
		s.spawn(func() {
			defer func() {
				s.mu.Lock()
				delete(s.buried, sid)
				s.mu.Unlock()
			}()
			s.bury([]string{sid}, b)
		})
	}
}

// bury removes what the dead among the sessions left: their entries, beginning
// with one bucket, then their files.
func (s *Store) bury(sids []string, first *bucket) {
	dead := map[string]bool{}
	for _, sid := range sids {
		if fd, ok := s.prove(sid); ok {
			dead[sid] = true
			if fd >= 0 {
				defer unix.Close(fd)
			}
		}
	}
	if len(dead) == 0 || first != nil && s.purge(first, dead) != nil {
		return
	}
	for _, b := range s.buckets {
		if b != first && s.purge(b, dead) != nil {
			return // the next session's sweep comes back to them
		}
	}
	for sid := range dead {
		os.Remove(s.sessionPath(sid) + ".sock")
		os.Remove(s.sessionPath(sid))
	}
}

// purge drops the entries of dead sessions from one bucket.
func (s *Store) purge(b *bucket, dead map[string]bool) error {
	if err := b.lock(s.ctx, false); err != nil {
		if errors.Is(err, errNoFile) {
			return nil
		}
		return err
	}
	dropped, err := b.drop(func(e *entry) bool { return dead[e.sid] })
	if dropped {
		if werr := b.write(); werr != nil {
			b.notices = nil
			err = werr
		}
	}
	s.tell(b, b.unlock())
	return err
}
