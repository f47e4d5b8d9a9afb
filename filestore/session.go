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
	s.loseMatching(func(h *held) bool { return h.sess == sess }, driver.CauseGone, errSession)
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

// newSession makes a session.
func (s *Store) newSession() (*session, error) {
	sess, err := s.lockNewFile()
	if err != nil {
		return nil, err
	}
	if err := s.complete(sess); err != nil {
		os.Remove(sess.path)
		unix.Close(sess.fd)
		return nil, err
	}
	return sess, nil
}

// lockNewFile creates a session's file and locks it. Before the file is locked it looks like that of a dead
// session, so another process may remove it. lockNewFile then creates another one.
func (s *Store) lockNewFile() (*session, error) {
	for {
		var raw [sidLen * 5 / 8]byte
		rand.Read(raw[:])
		sess := &session{sid: strings.ToLower(base32.StdEncoding.EncodeToString(raw[:]))}
		sess.path = s.sessionPath(sess.sid)
		var err error
		sess.fd, err = open(sess.path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, uint32(s.fileMode()))
		switch err {
		case nil:
		case unix.EEXIST:
			continue
		case unix.ENOENT:
			// Another process has removed the whole directory.
			if err := s.layout(); err != nil {
				return nil, coded("creating", s.dir, err)
			}
			continue
		default:
			return nil, coded("creating", sess.path, err)
		}
		locked, err := sess.lock()
		if locked {
			return sess, nil
		}
		os.Remove(sess.path)
		unix.Close(sess.fd)
		if err != nil {
			return nil, err
		}
	}
}

// lock locks the session's new file. It returns false without an error if another process removes or has
// removed the file.
func (sess *session) lock() (bool, error) {
	if err := flock(sess.fd, unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return false, nil
	} else if err != nil {
		return false, coded("locking", sess.path, err)
	}
	var own, there unix.Stat_t
	if err := unix.Fstat(sess.fd, &own); err != nil {
		return false, coded("checking", sess.path, err)
	}
	sess.id = idOf(&own)
	return stat(sess.path, &there) == nil && idOf(&there) == sess.id, nil
}

// complete writes the session's file, for people, and makes the socket beside it.
func (s *Store) complete(sess *session) error {
	unix.Fchmod(sess.fd, uint32(s.fileMode()))
	about, err := json.Marshal(map[string]any{"pid": os.Getpid(), "host": s.host, "start": time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	if _, err := pwrite(sess.fd, append(about, '\n'), 0); err != nil {
		return coded("writing", sess.path, err)
	}
	if sess.dir, err = os.Open(s.sessionsDir()); err != nil {
		return coded("opening", s.sessionsDir(), err)
	}
	sess.ln, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: s.sockName(sess.dir, sess.sid)})
	if err != nil {
		sess.dir.Close()
		return coded("listening on", sess.path+".sock", err)
	}
	sess.ln.SetUnlinkOnClose(false) // the name may be a short one, which is not valid later; end removes the socket
	os.Chmod(sess.path+".sock", s.fileMode())
	return nil
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
	running := s.cleaned[sid]
	s.cleaned[sid] = true
	s.mu.Unlock()
	if running {
		return
	}
	s.spawn(func() {
		defer func() {
			s.mu.Lock()
			delete(s.cleaned, sid)
			s.mu.Unlock()
		}()
		s.removeDead([]string{sid}, b)
	})
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
