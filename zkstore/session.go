package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// session is one ZooKeeper session with this client's entries and grants.
type session struct {
	s   *store
	zk  *zk.Session
	ttl time.Duration

	over    chan struct{} // closed when the session is over
	wakeUp  chan struct{} // has capacity one and wakes maintain
	guarded guard
	// invalidated is set when the servers can no longer execute a pending request of the session.
	invalidated atomic.Bool
	// relist is set when the ensemble's list of servers has to be read.
	relist atomic.Bool

	mu            sync.Mutex
	ended         bool
	maintaining   bool              // maintain checks the grants by a timer
	checkingLocal bool              // maintain also checks the entries that local entries wait behind
	grants        map[string]*grant // by request
	// ours are the paths of this client's grants and entries. They need no watch by one
	// another: the code that removes one wakes the others.
	ours    map[string]*grant              // nil for an entry
	entries map[string]map[*entry]struct{} // by directory
	subs    map[string]map[*entry]struct{} // by watched path
	trees   map[*tree]struct{}             // of Watch and Break
	losses  []func()                       // reports that unlock makes
}

// grant is a grant of this client.
type grant struct {
	driver.Grant
	ss   *session
	from driver.Requester
	dir  string
	path string

	// The session's mutex guards these fields. sent is the start of the present TTL, ttl. watched is
	// the connection on which the grant's own node is watched, 0 if it is not. cause is why the grant
	// was lost, empty while it was not. ending is set when its release was requested, and busy while
	// that is under way.
	sent         driver.Instant
	ttl          time.Duration
	made         time.Time
	watched      int
	cause        driver.Cause
	ending, busy bool
}

// newSession begins a session and its guard.
func (s *store) newSession(ctx context.Context, ttl time.Duration) (*session, error) {
	ss := &session{
		s: s, ttl: ttl, over: make(chan struct{}), wakeUp: make(chan struct{}, 1),
		grants: map[string]*grant{}, ours: map[string]*grant{},
		entries: map[string]map[*entry]struct{}{}, subs: map[string]map[*entry]struct{}{}, trees: map[*tree]struct{}{},
	}
	mark := s.highWater()
	c := s.clientConfig(ttl + s.slack())
	c.OnEvent, c.OnConn, c.OnEnd = ss.onEvent, ss.onConn, ss.onEnd
	client, err := zk.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	ss.zk = client
	if got := client.Timeout(); got < ttl+s.slack() {
		client.Abandon()
		return nil, driver.Errorf(driver.CodeInvalid, "zkstore: TTL %s needs a session of %s: this server gives %s", ttl, ttl+s.slack(), got)
	}
	err = ss.newGuard(ctx)
	if err == nil {
		err = ss.raiseBase(ctx, mark)
	}
	if err != nil {
		if ended := client.Ended(); ended != nil {
			err = &zk.NotSentError{Err: ended} // no request was sent, and this is the reason
		}
		_ = client.Close(ctx) // otherwise it expires
		return nil, err
	}
	s.calls.Tasks.Go(func() {
		ss.maintain()
		client.Abandon()
	})
	return ss, nil
}

// guard is a node of the session whose version every create checks, in one transaction. A
// change of the version makes all creates fail that were sent before on lost connections.
type guard struct {
	sync.Mutex
	path    string
	n       int // the number of guards so far
	version int32
	// fenced is the number of a connection. Creates on earlier connections fail.
	fenced int
	// base is the token base that the session's creates check, beside the guard.
	base tokenBase
}

// newGuard creates the node. A guard that was deleted gets a new name, since the versions of the
// old name would start again. The directory of the guards may have been deleted as well. A new
// directory may have another base of tokens and the same version, so the next create reads the
// base.
func (ss *session) newGuard(ctx context.Context) error {
	dir := ss.s.baseNode()
	ss.guarded.Lock()
	defer ss.guarded.Unlock()
	for {
		ss.guarded.n++
		path := fmt.Sprintf("%s/%x-%d", dir, uint64(ss.zk.ID()), ss.guarded.n)
		c := zk.CreateEphemeral(path, nil, ss.s.cfg.acl)
		err := ss.zk.Do(ctx, c)
		if ss.again(ctx, err) {
			continue
		}
		if err == nil {
			err = c.Err
		}
		switch {
		case err == nil:
			ss.guarded.path, ss.guarded.version = path, 0
			ss.guarded.base.version = noVersion
			return nil
		case errors.Is(err, zk.ErrNoNode):
			if err := ss.createDirs(ctx, dir); err != nil {
				return err
			}
		case errors.Is(err, zk.ErrNodeExists):
		default:
			return err
		}
	}
}

func (ss *session) guard() (path string, version int32) {
	ss.guarded.Lock()
	defer ss.guarded.Unlock()
	return ss.guarded.path, ss.guarded.version
}

// fence makes the requests on a lost connection fail. The present connection needs none, since
// its requests are executed in order.
func (ss *session) fence(ctx context.Context, conn int) error {
	for {
		ss.guarded.Lock()
		done := ss.guarded.fenced > conn
		ss.guarded.Unlock()
		if done || ss.zk.Conn() == conn {
			return nil
		}
		if err := ss.moveGuard(ctx); err != nil {
			return err
		}
	}
}

// moveGuard changes the guard's version. A client calls it before a read that must see the writes
// of another session. A deposed leader may answer a sync, but not a write.
func (ss *session) moveGuard(ctx context.Context) error {
	for {
		path, _ := ss.guard()
		c := zk.Set(path, nil, -1)
		if err := ss.zk.Do(ctx, c); ss.again(ctx, err) {
			continue
		} else if err != nil {
			return err
		}
		ss.guarded.Lock()
		switch {
		case c.Err == nil && ss.guarded.path == path:
			ss.guarded.version = max(ss.guarded.version, c.Stat.Version)
			ss.guarded.fenced = max(ss.guarded.fenced, c.Conn)
		case errors.Is(c.Err, zk.ErrNoNode):
			// Without the node every create fails.
			ss.guarded.fenced = max(ss.guarded.fenced, c.Conn)
		case c.Err != nil:
			ss.guarded.Unlock()
			return c.Err
		}
		ss.guarded.Unlock()
		return nil
	}
}

// again reports whether to repeat a request that may be executed twice: its connection was lost, and the
// session has another one, or will have.
func (ss *session) again(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && ss.zk.Ended() == nil
}

// refreshGuard reads the guard's version again, or creates a new guard, after a create has found
// another version or no guard.
func (ss *session) refreshGuard(ctx context.Context, path string) error {
	c := zk.Get(path, false)
	if err := ss.zk.Do(ctx, c); err != nil {
		return err
	}
	if errors.Is(c.Err, zk.ErrNoNode) {
		if now, _ := ss.guard(); now != path {
			return nil
		}
		return ss.newGuard(ctx)
	}
	if c.Err != nil {
		return c.Err
	}
	ss.guarded.Lock()
	defer ss.guarded.Unlock()
	if ss.guarded.path == path {
		ss.guarded.version = max(ss.guarded.version, c.Stat.Version)
	}
	return nil
}

// containers returns requests that create the directories above dir, and dir at last. The server
// removes each some time after its last child.
func (s *store) containers(dir string) []*zk.Call {
	var calls []*zk.Call
	for i := 1; i <= len(dir); i++ {
		if i == len(dir) || dir[i] == '/' {
			calls = append(calls, zk.CreateContainer(dir[:i], s.cfg.acl))
		}
	}
	return calls
}

// createDirs creates a directory and the directories above it.
func (ss *session) createDirs(ctx context.Context, dir string) error {
	calls := ss.s.containers(dir)
	if err := ss.zk.Do(ctx, calls...); err != nil {
		return err
	}
	exists := func(c *zk.Call) bool { return c.Err == nil || errors.Is(c.Err, zk.ErrNodeExists) }
	missing := func(c *zk.Call) bool { return errors.Is(c.Err, zk.ErrNoNode) }
	switch last := calls[len(calls)-1]; {
	case exists(last):
		return nil // the user may have no right to create the directories above
	case !missing(last):
		return last.Err
	}
	// A directory above is missing. If the server has refused to create one, report that.
	for _, c := range calls {
		if !exists(c) && !missing(c) {
			return c.Err
		}
	}
	return nil // it was removed meanwhile: the caller tries again
}

// onEvent wakes the entries that watch a path, and handles an event of a grant's own node.
func (ss *session) onEvent(e zk.Event) {
	if e.Path == configNode {
		ss.relist.Store(true)
		ss.wakeMaintain()
	}
	ss.mu.Lock()
	for p := range ss.subs[e.Path] {
		p.onEvent(e)
	}
	delete(ss.subs, e.Path)
	if g := ss.ours[e.Path]; g != nil {
		switch {
		case e.Type == zk.EventDeleted && g.busy: // by this client, and the answer follows
		case e.Type == zk.EventDeleted && g.ending:
			ss.forgetLocked(g)
		case e.Type == zk.EventDeleted:
			ss.forgetLocked(g)
			ss.loseLocked(g, driver.CauseTaken, errNodeDeleted)
		case e.Type == zk.EventChanged:
			g.watched = 0
			ss.wakeMaintain()
		}
	}
	for t := range ss.trees {
		t.notify(e.Path)
	}
	ss.unlock()
}

// loseLocked records the loss of a grant. If it is the first one, unlock notifies the holder.
func (ss *session) loseLocked(g *grant, cause driver.Cause, why error) {
	if g.cause == "" {
		g.cause = cause
		ss.losses = append(ss.losses, func() { g.from.Lost(cause, why) })
	}
}

// unlock unlocks the mutex, and then notifies the holders of the grants that were lost under it.
func (ss *session) unlock() {
	losses := ss.losses
	ss.losses = nil
	ss.mu.Unlock()
	for _, report := range losses {
		report()
	}
}

// forgetLocked removes a grant and wakes the entries of this client that wait for it.
func (ss *session) forgetLocked(g *grant) {
	if ss.grants[g.ID] == g {
		delete(ss.grants, g.ID)
	}
	delete(ss.ours, g.path)
	ss.wakeWaitersLocked(g.dir, g.path, nil)
}

// onConn handles a new connection: all watches have ended, and all entries read again.
func (ss *session) onConn(int) {
	ss.relist.Store(ss.s.cfg.tls == nil) // the list has no ports for TLS
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, entries := range ss.entries {
		for p := range entries {
			p.counting = false
			p.wake(nil)
		}
	}
	clear(ss.subs)
	for t := range ss.trees {
		t.renewWatch()
	}
	ss.wakeMaintain()
}

// onEnd handles the end of the session, with all its grants.
func (ss *session) onEnd(why error) {
	ss.mu.Lock()
	defer ss.unlock()
	for _, g := range ss.grants {
		ss.loseLocked(g, driver.CauseSessionEnded, why)
	}
	clear(ss.grants)
	clear(ss.ours)
	ss.ended = true
	close(ss.over)
	if ss.s.calls.Stopped() {
		ss.losses = nil // the core knows
	}
}

func (ss *session) wakeMaintain() { wakeup.Send(ss.wakeUp) }

func (ss *session) String() string { return strconv.FormatUint(uint64(ss.zk.ID()), 16) }
