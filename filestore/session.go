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

// session proves that a Store lives. It is a file that the Store keeps locked, and that the kernel
// unlocks when the process ends. The socket beside the file carries messages. No decision depends on
// them.
type session struct {
	sid  string
	path string
	fd   int
	id   fileID
	dir  *os.File // the sessions directory, for short names of sockets; see sockName
	ln   *net.UnixListener
}

// current returns the Store's session. The first call makes it. If the session's file was removed,
// other processes consider the session dead, so current replaces it.
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

// linked reports whether the session's file is still at its path.
func (sess *session) linked() bool {
	var st unix.Stat_t
	err := stat(sess.path, &st)
	return err == nil && idOf(&st) == sess.id || err != nil && err != unix.ENOENT && err != unix.ENOTDIR
}

// abandon ends a session whose file was removed. Other clients may get its grants from now on. Its
// waiters make new entries with the next session.
func (s *Store) abandon(sess *session) {
	s.sess.CompareAndSwap(sess, nil)
	s.loseAll(func(h *held) bool { return h.sess == sess }, driver.CauseGone, errSession)
	s.end(sess)
	s.wakeAll()
}

// end closes a session, which ends its grants.
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

// trySession makes a session. Before it has locked the new file, the file looks like that of a dead
// session. If another process removes the file then, trySession returns neither a session nor an error.
func (s *Store) trySession() (*session, error) {
	var raw [sidLen * 5 / 8]byte
	rand.Read(raw[:])
	sid := strings.ToLower(base32.StdEncoding.EncodeToString(raw[:]))
	path := s.sessionPath(sid)
	fd, err := open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, uint32(s.fileMode()))
	if err == unix.ENOENT {
		// Another process has removed the whole directory.
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
		return nil, coded("checking", path, err)
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
	ln.SetUnlinkOnClose(false) // the name may be a short one, which is not valid later; end removes the socket
	os.Chmod(path+".sock", s.fileMode())
	keep = true
	return &session{sid: sid, path: path, fd: fd, id: idOf(&own), dir: dir, ln: ln}, nil
}

// sockName returns the path of a session's socket for system calls. It is a short one if the full path
// is too long.
func (s *Store) sockName(dir *os.File, sid string) string {
	if s.shorten {
		return shortName(dir) + "/" + sid + ".sock"
	}
	return s.sessionPath(sid) + ".sock"
}

// dead reports whether a session has certainly ended: its file does not exist or is not locked. It tests
// that with a shared lock, so that two processes that test at once do not mistake each other for the session.
func (s *Store) dead(sid string) bool {
	fd, dead := s.prove(sid)
	if fd >= 0 {
		unix.Close(fd)
	}
	return dead
}

// prove reports whether a session is dead. If a dead session's file exists, prove returns it locked. The
// caller keeps the file locked until it has removed the session. The reason is a new session: before it
// has locked its file, it looks dead, and it must not lock the file meanwhile.
func (s *Store) prove(sid string) (fd int, dead bool) {
	fd, err := open(s.sessionPath(sid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err == unix.ENOENT
	}
	if flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil { // mutation: file-life
		unix.Close(fd)
		return -1, false
	}
	return fd, true
}

func (s *Store) isOwn(sid string) bool {
	sess := s.sess.Load()
	return sess != nil && sess.sid == sid
}

// sweep removes the entries and files of dead sessions.
func (s *Store) sweep() {
	files, err := os.ReadDir(s.sessionsDir())
	if err != nil {
		return // a caller that needs the directory reports the error
	}
	var sids []string
	for _, f := range files {
		sid := strings.TrimSuffix(f.Name(), ".sock")
		if len(sid) == sidLen && !s.isOwn(sid) && (len(sids) == 0 || sids[len(sids)-1] != sid) {
			sids = append(sids, sid)
		}
	}
	// It handles 64 sessions at a time, because each needs a descriptor.
	for some := range slices.Chunk(sids, 64) {
		s.removeDead(some, nil)
	}
}

// cleanDeadSession removes a dead session in the background, beginning with the bucket that it blocks.
func (s *Store) cleanDeadSession(sid string, b *bucket) {
	s.mu.Lock()
	removing := s.buried[sid]
	s.buried[sid] = true
	s.mu.Unlock()
	if !removing {
		s.spawn(func() {
			defer func() {
				s.mu.Lock()
				delete(s.buried, sid)
				s.mu.Unlock()
			}()
			s.removeDead([]string{sid}, b)
		})
	}
}

// removeDead removes the entries of the dead sessions among sids, beginning with one bucket, and then the
// files of these sessions.
func (s *Store) removeDead(sids []string, first *bucket) {
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
			return // the sweep of the next new session tries again
		}
	}
	for sid := range dead {
		os.Remove(s.sessionPath(sid) + ".sock")
		os.Remove(s.sessionPath(sid))
	}
}

// purge removes the entries of dead sessions from one bucket.
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
	s.notify(b, b.unlock())
	return err
}
