//go:build linux || darwin

package filestore

import (
	"context"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/filesystem"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Store is one client of a directory of locks. Its grants end with it, and with its process. It implements
// [driver.Store], Inspector, Breaker, Watcher and Values.
type Store struct{ *store }

type store struct {
	dir, ns, host string
	uid           int
	mode          fs.FileMode
	modeGiven     bool
	allowed       []string // see AllowFileSystem
	topMu         sync.Mutex
	top           atomic.Pointer[os.File] // the open directory; topMu guards its changes
	boot          bootID
	now           func() int64
	sync          func(fd int) error // datasync

	calls    *calls.Calls  // stopped when Close begins
	tasks    *calls.Calls  // the goroutines of the store; stopped when Close has removed the entries
	finished chan struct{} // closed when Close has returned

	buckets [256]*bucket
	values  lockFile // excludes other writers of values
	sessMu  sync.Mutex
	sess    atomic.Pointer[session] // sessMu guards its changes
	held    *held.Grants

	mu      sync.Mutex
	waiting map[string]*waiter // by request
	links   map[string]*link   // the connection to each connected session
	conns   map[*link]struct{}
	idle    []*link         // connections that no waiter uses, the oldest first
	cleaned map[string]bool // the dead sessions that a goroutine removes
}

var (
	_ driver.Store     = (*store)(nil)
	_ driver.Inspector = (*store)(nil)
	_ driver.Breaker   = (*store)(nil)
	_ driver.Watcher   = (*store)(nil)
)

const (
	// noticeTimeout limits how late the store notifies a holder that its grant is gone.
	noticeTimeout = time.Second
	// checkInterval is shorter than noticeTimeout, because the check itself takes time.
	checkInterval = noticeTimeout * 8 / 10
	// wakeInterval limits how long a lost message delays a waiter.
	wakeInterval = time.Second
	// closeTimeout limits how long Close waits for a bucket that a stopped process has locked. The
	// end of the session frees the entries there as well.
	closeTimeout = 5 * time.Second
)

// Open opens the locks in a directory, given as a path or as a URL such as file:///var/lib/locks. It
// creates the directory if it is missing. It refuses a directory that it cannot write. It refuses
// another user's directory unless Mode shares it, and a path that another user may have laid out: see
// docs/files.md. It also refuses a file system that is not known to be local to this machine, unless
// AllowFileSystem names it.
func Open(ctx context.Context, dir string, options ...Option) (*Store, error) {
	if strings.HasPrefix(dir, "file:") {
		u, err := storeurl.Parse(dir, "file")
		if err != nil {
			return nil, driver.Errorf(driver.CodeInvalid, "filestore: %w", err)
		}
		path, fromURL, err := parseURL(u)
		if err != nil {
			return nil, err
		}
		dir, options = path, append(fromURL, options...)
	}
	c, err := configure(options)
	if err != nil {
		return nil, err
	}
	if dir, err = checkDir(dir); err != nil {
		return nil, err
	}
	boot, err := bootNow()
	if err != nil {
		return nil, driver.Errorf(driver.CodeRefused, "filestore: the boot's id cannot be read, so tokens could repeat after a crash: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	s := &store{
		dir: dir, ns: c.namespace, host: host, uid: os.Geteuid(), mode: c.mode, modeGiven: c.modeGiven, allowed: c.allowed,
		boot: boot, now: wallMicros, sync: datasync,
		calls: calls.New(), tasks: calls.New(), finished: make(chan struct{}),
		waiting: map[string]*waiter{}, cleaned: map[string]bool{},
		links: map[string]*link{}, conns: map[*link]struct{}{},
	}
	s.held = held.New(checkInterval, 0, s.check)
	if err := s.prepare(ctx); err != nil {
		s.closeTop()
		return nil, err
	}
	for i := range s.buckets {
		s.buckets[i] = &bucket{lockFile: s.lockFile(bucketsDir, fmt.Sprintf("%02x", i))}
	}
	s.values = s.lockFile(valuesDir, "lock")
	return &Store{s}, nil
}

// String returns the store's URL.
func (s *store) String() string { return (&url.URL{Scheme: "file", Path: s.dir}).String() }

// bucketOf returns the bucket of a name, which is the same in every version of this package.
func (s *store) bucketOf(name string) *bucket {
	h := fnv.New64a()
	h.Write([]byte(s.ns))
	h.Write([]byte{0})
	h.Write([]byte(name))
	n := h.Sum64()
	n ^= n >> 32
	n ^= n >> 16
	return s.buckets[byte(n^n>>8)]
}

// Guarantees returns the guarantees of locks in files.
func (s *store) Guarantees(context.Context) (driver.Guarantees, error) {
	scope := filesystem.Scope(s.dir)
	return driver.Guarantees{
		Kind: "file", Scope: scope, Reach: scope.Describe() + ": every process that opens the same directory",
		Crash: driver.CrashFreesAtOnce, Pause: driver.PauseKeeps,
		Order: driver.OrderFIFO, Wake: driver.WakePush, Fallback: wakeInterval,
		Shared: true, Semaphore: true, Mixed: true, Slots: true,
		Linger: true, // mutation: file-linger
		Tokens: "the machine's clock in microseconds, above the last token of the name, also after a crash of the machine. If the directory was deleted or restored, they rise unless the clock was set back", Reserves: true,
		EarlyEnd: []string{"the directory's files deleted, replaced or damaged"},
		Notice:   noticeTimeout,
		Break:    driver.BreakNotify, Visible: driver.VisibleAll, Wanted: driver.WakePush,
		Notes: []string{
			"a file system that is not local is refused, unless filesystem= names it",
			"only processes of this user, unless mode=0770 or mode=0777 shares the directory",
			"a process that is stopped during a change blocks one name in 256 until it continues",
			"a child made by fork, without exec, keeps its parent's locks",
		},
	}, nil
}

// Classify returns the code of an error. Only a write that was cut off returns an error without a code.
func (s *store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Close removes every grant and queue entry of this store, grants the names to the waiters behind them,
// and ends the session. If ctx ends first, the end of the session frees the remaining names.
func (s *store) Close(ctx context.Context) error {
	if !s.calls.Stop() {
		select {
		case <-s.finished:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(s.finished)
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()

	s.calls.Cancel()
	s.held.Stop()
	s.loseAll(driver.CauseClosed, calls.ErrClosed)
	calls.Wait(ctx, &s.calls.Running)
	s.loseAll(driver.CauseClosed, calls.ErrClosed) // the grants that the last calls have returned
	for _, b := range s.buckets {
		if b.used.Load() {
			s.removeOwnEntries(ctx, b)
		}
	}
	s.tasks.Stop()
	s.mu.Lock()
	for l := range s.conns {
		l.conn.Close()
	}
	s.mu.Unlock()
	s.sessMu.Lock()
	if sess := s.sess.Swap(nil); sess != nil {
		s.end(sess)
	}
	s.sessMu.Unlock()
	for _, b := range s.buckets {
		// If this fails, a goroutine waits in flock, and closes the file afterwards.
		if b.reserveFile(ctx, nil) == nil {
			b.forget()
			<-b.sem
		}
	}
	calls.Wait(ctx, &s.tasks.Tasks)
	s.closeTop()
	return nil
}

func (s *store) closeTop() {
	s.topMu.Lock()
	defer s.topMu.Unlock()
	if top := s.top.Load(); top != nil {
		top.Close()
	}
}

// removeOwnEntries removes the entries of this store from a bucket. Those of an earlier session are dead.
func (s *store) removeOwnEntries(ctx context.Context, b *bucket) {
	if b.lockUntil(ctx, nil, false) != nil {
		return
	}
	dropped, _ := b.drop(func(e *entry) bool { return s.isOwn(e.sid) })
	_ = s.commit(b, dropped)
}
