//go:build linux || darwin

package filestore

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"io/fs"
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
	dir  *os.File // the sessions directory
	ln   *net.UnixListener
}

// current returns the Store's session. The first call makes it. If the session's file was removed,
// other processes consider the session dead, so current replaces it.
func (s *store) current() (*session, error) {
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
	s.sess.Store(sess)
	s.tasks.Go(func() { s.listen(sess) })
	s.tasks.Go(s.sweep)
	return sess, nil
}

// linked reports whether the session's file is still at its path.
func (sess *session) linked() bool {
	var st unix.Stat_t
	err := stat(sess.path, &st)
	return err == nil && idOf(&st) == sess.id || err != nil && err != unix.ENOENT && err != unix.ENOTDIR
}

// freshFor is the age at which a store renews the times of its files. Cleaners remove files of a greater age,
// such as 10 days in /tmp.
const freshFor = 10 * time.Minute

// keepFresh renews the times of the session's files, of the format, and of the buckets of this store's grants.
// Cleaners of temporary directories remove files whose times are old. The file of the session shows when that
// was done last. A failure has no effect as long as no cleaner runs, so keepFresh ignores it.
func (s *store) keepFresh(sess *session) {
	var st unix.Stat_t
	if fstatat(sess.dir, sess.sid, &st) != nil || time.Since(time.Unix(st.Mtim.Unix())) < freshFor {
		return
	}
	s.touch(s.top.Load(), formatFile)
	if buckets, err := s.subdir(bucketsDir); err == nil {
		defer buckets.Close()
		for _, h := range s.held.All() {
			s.touch(buckets, h.Handle.(*grant).b.name)
		}
	}
	if path, done, err := openSocket(sess.dir, sess.sid+".sock"); err == nil {
		unix.Utimes(path, nil)
		done()
	}
	s.touch(sess.dir, sess.sid)
}

// touch renews the times of a file of a directory.
func (s *store) touch(dir *os.File, name string) {
	if fd, _, err := s.openFile(dir, name, unix.O_RDONLY); err == nil {
		unix.Futimes(fd, nil)
		unix.Close(fd)
	}
}

// abandon ends a session whose file was removed. Other clients may get its grants from now on. Its
// waiters make new entries with the next session.
func (s *store) abandon(sess *session) {
	s.sess.CompareAndSwap(sess, nil)
	s.loseMatching(func(h *grant) bool { return h.sess == sess }, driver.CauseGone, errSession)
	s.end(sess)
	s.wakeAll()
}

// end closes a session, which ends its grants.
func (s *store) end(sess *session) {
	sess.ln.Close()
	sess.remove()
}

// remove removes the session's file and socket, and closes the file.
func (sess *session) remove() {
	unlink(sess.dir, sess.sid+".sock")
	unlink(sess.dir, sess.sid)
	unix.Close(sess.fd)
	sess.dir.Close()
}

// isSID reports whether a text is the name of a session. Every name that comes from a file or a message is
// checked, because it becomes part of a path.
func isSID(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(text) == sidLen
}

// newSession makes a session.
func (s *store) newSession() (*session, error) {
	sess, err := s.lockNewFile()
	if err != nil {
		return nil, err
	}
	if err := s.complete(sess); err != nil {
		sess.remove()
		return nil, err
	}
	return sess, nil
}

// lockNewFile creates a session's file and locks it. Before the file is locked it looks like that of a dead
// session, so another process may remove it. lockNewFile then creates another one.
func (s *store) lockNewFile() (*session, error) {
	for {
		err := s.refresh(false)
		if err == nil {
			var sess *session
			if sess, err = s.newFile(); sess != nil {
				return sess, nil
			}
		}
		switch err {
		case nil, unix.EEXIST:
		case unix.ENOENT:
			// Another process has removed the whole directory.
			if err := s.layout(); err != nil {
				return nil, coded("creating", s.dir, err)
			}
		default:
			return nil, coded("creating a session in", s.path(sessionsDir), err)
		}
	}
}

// newFile creates a session's file and locks it. It returns nil without an error if another
// process removes or has removed the file.
func (s *store) newFile() (*session, error) {
	dir, err := s.subdir(sessionsDir)
	if err != nil {
		return nil, err
	}
	var raw [sidLen * 5 / 8]byte
	rand.Read(raw[:])
	sess := &session{sid: strings.ToLower(base32.StdEncoding.EncodeToString(raw[:])), dir: dir}
	sess.path = filepath.Join(dir.Name(), sess.sid)
	sess.fd, err = openat(dir, sess.sid, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, uint32(s.fileMode()))
	if err != nil {
		dir.Close()
		return nil, err
	}
	locked, err := sess.lock()
	if locked {
		return sess, nil
	}
	sess.remove()
	return nil, err
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

// pidNamespaceKey is the key of the PID namespace in a session's file.
const pidNamespaceKey = "pid namespace"

// complete writes the session's file, for people and for Inspect, and makes the socket beside it.
func (s *store) complete(sess *session) error {
	unix.Fchmod(sess.fd, uint32(s.fileMode()))
	about, err := json.Marshal(map[string]any{"pid": os.Getpid(), pidNamespaceKey: pidNamespace(), "host": s.host, "start": time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	if _, err := pwrite(sess.fd, append(about, '\n'), 0); err != nil {
		return coded("writing", sess.path, err)
	}
	socket := sess.sid + ".sock"
	sess.ln, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: newSocket(sess.dir, socket)})
	if err != nil {
		return coded("listening on", sess.path+".sock", err)
	}
	sess.ln.SetUnlinkOnClose(false) // the name may be a short one, which is not valid later; end removes the socket
	// If this fails, other users' waiters check by themselves.
	chmodSocket(sess.dir, socket, s.fileMode())
	return nil
}

// pidNamespaceOf returns the PID namespace that a session's file has, or "" if it has none.
func (s *store) pidNamespaceOf(sid string) string {
	dir, err := s.subdir(sessionsDir)
	if err != nil {
		return ""
	}
	defer dir.Close()
	fd, _, err := s.openFile(dir, sid, unix.O_RDONLY)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	b := make([]byte, pageLen)
	n, _ := pread(fd, b, 0)
	var about map[string]any
	_ = json.Unmarshal(b[:n], &about) // a file that is no JSON has no namespace
	name, _ := about[pidNamespaceKey].(string)
	return name
}

// dialSocket connects to the socket of a session.
func (s *store) dialSocket(sid string) (*net.UnixConn, error) {
	dir, err := s.subdir(sessionsDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path, done, err := openSocket(dir, sid+".sock")
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
}

// dead reports whether a session has certainly ended: its file does not exist or is not locked. It tests
// that with a shared lock, so that two processes that test at once do not mistake each other for the session.
func (s *store) dead(sid string) bool {
	fd, dead := s.prove(sid)
	if fd >= 0 {
		unix.Close(fd)
	}
	return dead
}

// prove reports whether a session is dead. If a dead session's file exists, prove returns it locked. The
// caller keeps the file locked until it has removed the session. The reason is a new session: before it
// has locked its file, it looks dead, and it must not lock the file meanwhile.
func (s *store) prove(sid string) (fd int, dead bool) {
	dir, err := s.subdir(sessionsDir)
	if err != nil {
		return -1, err == unix.ENOENT
	}
	defer dir.Close()
	fd, err = openat(dir, sid, unix.O_RDONLY, 0)
	if err != nil {
		return -1, err == unix.ENOENT || err == unix.ELOOP
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, err == nil // another program's file has taken the place of the session's
	}
	if flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil { // mutation: file-life
		unix.Close(fd)
		return -1, false
	}
	return fd, true
}

func (s *store) isOwn(sid string) bool {
	sess := s.sess.Load()
	return sess != nil && sess.sid == sid
}

// sweep removes the entries and files of dead sessions.
func (s *store) sweep() {
	dir, err := s.subdir(sessionsDir)
	if err != nil {
		return // a caller that needs the directory reports the error
	}
	defer dir.Close()
	for s.calls.Ctx.Err() == nil {
		// It handles 64 files at a time, because each session needs a descriptor.
		files, err := dir.ReadDir(64)
		if err != nil {
			return
		}
		var sids []string
		for _, f := range files {
			sid := strings.TrimSuffix(f.Name(), ".sock")
			made := f.Type().IsRegular() || f.Type() == fs.ModeSocket
			if made && isSID(sid) && !s.isOwn(sid) && !slices.Contains(sids, sid) {
				sids = append(sids, sid)
			}
		}
		s.removeDead(sids, nil)
	}
}

// cleanDeadSession removes a dead session in the background, beginning with the bucket that it blocks.
func (s *store) cleanDeadSession(sid string, b *bucket) {
	s.mu.Lock()
	running := s.cleaned[sid]
	s.cleaned[sid] = true
	s.mu.Unlock()
	if running {
		return
	}
	s.tasks.Go(func() {
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
func (s *store) removeDead(sids []string, first *bucket) {
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
	dir, err := s.subdir(sessionsDir)
	if err != nil {
		return
	}
	defer dir.Close()
	for sid := range dead {
		unlink(dir, sid+".sock")
		unlink(dir, sid)
	}
}

// purge removes the entries of dead sessions from one bucket.
func (s *store) purge(b *bucket, dead map[string]bool) error {
	if err := b.lock(s.calls.Ctx, false); err != nil {
		return err
	}
	dropped, err := b.drop(func(e *entry) bool { return dead[e.sid] })
	return cmp.Or(s.commit(b, dropped), err)
}
