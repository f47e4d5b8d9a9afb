package zkstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// entry is a queue entry: a node of this client that is not a grant yet.
type entry struct {
	ss    *session
	r     driver.Request
	dir   string
	read  func(string) (node, bool) // the directory's children
	node  node
	path  string
	token uint64
	data  []byte
	// at is where the validity of the grant begins: the instant before the request that showed that
	// the entry is a grant, or the present if another call of this client has shown that.
	at driver.Instant

	// signal has capacity one and wakes the entry. fresh is a list that was read since, nil if the
	// directory must be read. The session's mutex guards fresh.
	signal chan struct{}
	fresh  []string
	// subscribed are the paths in the session's subs, and localPredecessors the nodes of
	// this client that the entry waits for without a watch.
	subscribed, localPredecessors []string
	// counting is set while the entry watches all nodes before it and its own, on the connection
	// conn. remaining is how many of the nodes before it still exist. since is the instant before
	// the requests that set the watches. The session's mutex guards these fields.
	counting  bool
	remaining int
	conn      int
	since     driver.Instant
	// handoff is set when the grant before the entry was released in this process. deleted is set
	// when the entry's own node was found to be deleted. The session's mutex guards both.
	handoff, deleted bool
	// unreported are the nodes of the holders that were not reported to the requester yet.
	unreported []node
}

// wake wakes an entry. The caller holds the session's mutex.
func (p *entry) wake(fresh []string) {
	p.fresh = fresh
	wakeup.Send(p.signal)
}

// onEvent handles an event of a node that the entry watches. The caller holds the session's mutex.
func (p *entry) onEvent(e zk.Event) {
	switch {
	case e.Type == zk.EventDeleted && e.Path == p.path:
		p.deleted = true
	case e.Type == zk.EventDeleted && p.counting:
		if p.remaining--; p.remaining == 0 {
			p.wake(nil)
		}
		return
	}
	p.counting = false // the watch of that node is used up
	p.wake(nil)
}

// grantedMeanwhile reports whether the entry has become a grant since it was queued, without a read: the grant before it
// was handed off to it, or every node before it was seen to end while its own existed. In the second case the validity
// runs from the requests that set the watches, so after a longer wait the entry reads the queue again.
func (p *entry) grantedMeanwhile() bool {
	p.ss.mu.Lock()
	defer p.ss.mu.Unlock()
	if p.handoff {
		p.at = driver.Now()
		return true
	}
	passed, _ := p.since.Elapsed()
	if !p.counting || p.remaining > 0 || passed > p.ss.ttl/4 {
		return false
	}
	p.at = p.since
	return true
}

// cleanupTimeout limits the cleanup of a call after its context has ended.
const cleanupTimeout = 300 * time.Millisecond

// creation is a transaction that creates the node of a request. Its operations are two checks, the
// release of a grant if that is pending, and the create. The server reads the directory after it.
type creation struct {
	r    driver.Request
	dir  string
	data []byte

	guard     string // the path of the session's guard
	base      tokenBase
	highest   uint64 // the high-water mark of tokens before the transaction
	o         *release
	releasing bool // the transaction contains the release o

	multi, create *zk.Call
	list          *zk.Call // the directory
	next          *zk.Call // the entry to which o has handed its grant off, nil if it is not read
}

// The index of an operation of a creation. The create is the last one.
const (
	opGuard = iota
	opBase
	opRelease
)

// creation returns the transaction that creates the node of a request, with the release o if that is
// pending.
func (ss *session) creation(r driver.Request, dir, mark string, data []byte, o *release) creation {
	t := creation{r: r, dir: dir, data: data, highest: ss.highest(), o: o, releasing: o.pending()}
	var version int32
	t.guard, version = ss.guard()
	var basePath string
	basePath, t.base = ss.base()
	t.create = zk.CreateSequential(dir+"/"+protected(r.ID)+mark, data, ss.s.cfg.acl)
	ops := []*zk.Call{zk.Check(t.guard, version), zk.Check(basePath, t.base.version)}
	if t.releasing {
		ops = append(ops, o.op())
	}
	t.multi, t.list, t.next = zk.Multi(append(ops, t.create)...), zk.Children(dir), o.readNext(dir)
	return t
}

// do sends t and its reads in one piece.
func (ss *session) do(ctx context.Context, t *creation) error {
	if t.next != nil {
		return ss.zk.Do(ctx, t.multi, t.list, t.next)
	}
	return ss.zk.Do(ctx, t.multi, t.list)
}

// enter creates the node of a request, and reads the directory in the same round trip. The
// transaction that creates the node also carries out the release o, unless that is nil. If only the
// read of the directory has failed, enter returns the entry and that error.
func (ss *session) enter(ctx context.Context, r driver.Request, dir, mark string, data []byte, o *release) (*entry, []string, error) {
	for {
		t := ss.creation(r, dir, mark, data, o)
		err := ss.do(ctx, &t)
		if lost, ok := errors.AsType[*zk.LostError](err); ok {
			if ctx.Err() != nil {
				return nil, nil, ss.abandonCreate(ctx, &t, lost)
			}
			c, err := ss.findCreated(ctx, r, dir, t.multi.Conn)
			if err != nil {
				return nil, nil, err
			}
			if c != nil {
				p, err := ss.applied(&t, c, nil)
				return p, c.names, err
			}
			if t.releasing {
				o.unanswered = true
			}
			continue // create the node again
		}
		if err == nil && t.multi.Err == nil {
			p, err := ss.applied(&t, &created{t.create.Path, t.multi.Zxid, t.list.Names, t.multi.Sent}, t.next)
			if err != nil {
				return nil, nil, err
			}
			return p, t.list.Names, ss.s.fail(t.list.Err)
		}
		if err == nil {
			err = ss.repair(ctx, &t)
		}
		if err != nil {
			return nil, nil, ss.fail(err)
		}
	}
}

// applied returns the entry of a node that t has created, and reports the release. next is the
// answered read of the entry to which the grant was handed off, nil if there is none.
func (ss *session) applied(t *creation, c *created, next *zk.Call) (*entry, error) {
	t.o.checkNext(t.dir, c.names, next)
	if t.releasing {
		t.o.done(t.dir, c.names)
	}
	return ss.entry(t.r, t.dir, c.path, ss.s.token(t.base, c.czxid), t.data, c.at)
}

// repair removes the cause for which a server has refused t, so that the client can repeat it. It
// returns the error of t if it cannot.
func (ss *session) repair(ctx context.Context, t *creation) error {
	err := t.multi.Err
	missing, otherVersion := errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion)
	switch failed := t.multi.Failed; {
	case failed == opGuard && (missing || otherVersion):
		return ss.refreshGuard(ctx, t.guard)
	case failed == opBase && otherVersion:
		return ss.raiseBase(ctx, t.highest) // another client has raised the base, or a restore has removed it
	case failed == opRelease && t.releasing && missing:
		t.o.notFound()
		return nil
	case failed == len(t.multi.Results)-1 && missing:
		return ss.createDirs(ctx, t.dir)
	}
	return err
}

// fail returns an error with a code, or errSessionExpired if the session has expired.
func (ss *session) fail(err error) error {
	if !ss.s.calls.Stopped() && ss.zk.Ended() != nil {
		if errors.Is(ss.zk.Ended(), zk.ErrExpired) {
			return errSessionExpired
		}
		return ss.s.fail(ss.zk.Ended())
	}
	return ss.s.fail(err)
}

// entry returns the queue entry of a node that was created, and registers it for wake-ups.
func (ss *session) entry(r driver.Request, dir, path string, token uint64, data []byte, at driver.Instant) (*entry, error) {
	p := &entry{ss: ss, r: r, dir: dir, path: path, token: token, data: data, at: at, signal: make(chan struct{}, 1)}
	p.read = ss.s.recipe.reader(dir, r.Limit) // mutation: zookeeper-token
	var ok bool
	if p.node, ok = p.read(path[len(dir)+1:]); !ok {
		return nil, driver.Errorf(driver.CodeUnknown, "the server made a node %q", path)
	}
	p.register()
	return p, nil
}

// created is a node that a creation has made.
type created struct {
	path  string
	czxid int64
	// names are the directory's children, nil if they are unknown. at is before the request that
	// listed them.
	names []string
	at    driver.Instant
}

// abandonCreate ends a request whose caller has given up before the answer to its create. It waits
// for the answer for a moment. Without an answer the outcome is unknown, and the caller has to undo
// the request.
func (ss *session) abandonCreate(ctx context.Context, t *creation, lost error) error {
	timer := time.NewTimer(cleanupTimeout)
	defer timer.Stop()
	answered := false
	select {
	case <-t.multi.Done():
		_, lost := t.multi.Err.(*zk.LostError)
		answered = !lost
	case <-timer.C:
	}
	switch {
	case !answered:
		ss.s.remember(t.r.ID, ss, t.multi.Conn)
		return ss.s.fail(lost)
	case t.multi.Err != nil:
		return withdrawn(ctx)
	}
	p, err := ss.applied(t, &created{t.create.Path, t.multi.Zxid, nil, t.multi.Sent}, nil)
	if err != nil {
		return err
	}
	return p.withdraw(ctx, withdrawn(ctx))
}

// findCreated returns the node of a create whose connection was lost before the answer. It returns
// nil if there is no such node and none can still appear. It continues over further lost
// connections. If it gets no result, the outcome is unknown, and the caller has to undo the
// request.
func (ss *session) findCreated(ctx context.Context, r driver.Request, dir string, conn int) (*created, error) {
	for {
		c, err := ss.findCreatedOnce(ctx, r.ID, dir, conn)
		if err == nil {
			return c, nil
		}
		if ctx.Err() == nil {
			if ss.fail(err) == errSessionExpired {
				return nil, errSessionExpired
			}
			if _, lost := errors.AsType[*zk.LostError](err); lost || errors.Is(err, zk.ErrNoNode) {
				continue
			}
		}
		ss.s.remember(r.ID, ss, conn)
		return nil, ss.s.fail(&zk.LostError{Err: err})
	}
}

// findCreatedOnce is one attempt of findCreated. ErrNoNode means that a node has just gone.
func (ss *session) findCreatedOnce(ctx context.Context, id, dir string, conn int) (*created, error) {
	found, err := ss.find(ctx, id, dir, conn)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	get, list := zk.Get(found[0], false), zk.Children(dir)
	if err := ss.zk.Do(ctx, get, list); err != nil {
		return nil, err
	}
	if err := cmp.Or(get.Err, list.Err); err != nil {
		return nil, err
	}
	if get.Stat.EphemeralOwner != ss.zk.ID() {
		// It belongs to an earlier session and is about to end (CURATOR-604). It is deleted,
		// and created again.
		_ = ss.zk.Do(ctx, zk.Delete(found[0], -1))
		return nil, zk.ErrNoNode
	}
	return &created{found[0], get.Stat.Czxid, list.Names, list.Sent}, nil
}

// find returns the nodes of a request in a directory, after every request on an earlier
// connection was executed or can no longer be.
func (ss *session) find(ctx context.Context, id, dir string, conn int) ([]string, error) {
	for {
		if err := ss.fence(ctx, conn); err != nil {
			return nil, err
		}
		sync, list := zk.Sync(dir), zk.Children(dir)
		if err := ss.zk.Do(ctx, sync, list); err != nil {
			return nil, err
		}
		if sync.Conn != conn {
			ss.guarded.Lock()
			fenced := ss.guarded.fenced > conn
			ss.guarded.Unlock()
			if !fenced {
				continue // the connection changed between the two
			}
		}
		switch {
		case errors.Is(list.Err, zk.ErrNoNode):
			return nil, nil
		case list.Err != nil:
			return nil, list.Err
		case sync.Err != nil:
			return nil, sync.Err
		}
		var found []string
		for _, name := range list.Names {
			if strings.HasPrefix(name, protected(id)) {
				found = append(found, dir+"/"+name)
			}
		}
		return found, nil
	}
}

// remember records a request with an unknown outcome.
func (s *store) remember(id string, ss *session, conn int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unanswered[id] = pendingCreate{ss, conn}
}

// forget removes the record of a request with an unknown outcome.
func (s *store) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unanswered, id)
}

// register makes an entry receive wake-ups.
func (p *entry) register() {
	ss := p.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := ss.entries[p.dir]
	if all == nil {
		all = map[*entry]struct{}{}
		ss.entries[p.dir] = all
	}
	all[p] = struct{}{}
	if !ss.ended {
		ss.ours[p.path] = nil
	}
}

// unregister ends the wake-ups of an entry.
func (p *entry) unregister() {
	p.ss.mu.Lock()
	defer p.ss.mu.Unlock()
	p.unregisterLocked()
}

func (p *entry) unregisterLocked() {
	ss := p.ss
	delete(ss.entries[p.dir], p)
	if len(ss.entries[p.dir]) == 0 {
		delete(ss.entries, p.dir)
	}
	if g, ok := ss.ours[p.path]; ok && g == nil {
		delete(ss.ours, p.path)
	}
	p.subscribed = append(p.subscribed, p.path) // an entry that counts watches its own node
	p.unsubscribeLocked()
}

func (p *entry) subscribeLocked(path string) {
	subs := p.ss.subs[path]
	if subs == nil {
		subs = map[*entry]struct{}{}
		p.ss.subs[path] = subs
	}
	subs[p] = struct{}{}
}

// unsubscribeLocked ends all subscriptions of the entry.
func (p *entry) unsubscribeLocked() {
	for _, path := range p.subscribed {
		delete(p.ss.subs[path], p)
		if len(p.ss.subs[path]) == 0 {
			delete(p.ss.subs, path)
		}
	}
	p.subscribed = nil
}

// withdraw removes an entry and returns why, if the server confirms that.
func (p *entry) withdraw(ctx context.Context, why error) error {
	ss := p.ss
	p.unregister()
	defer ss.wakeWaiters(p.dir, p.path, nil)
	return calls.Withdraw(ctx, cleanupTimeout, why, func(ctx context.Context) error {
		del := zk.Delete(p.path, -1)
		if err := ss.zk.Do(ctx, del); err != nil || errors.Is(del.Err, zk.ErrNoNode) {
			return ss.s.fail(err)
		}
		return ss.s.fail(del.Err)
	})
}

// wakeWaiters wakes the entries of this client that wait for another node of this client, which was
// deleted. fresh is a list that was read since, or nil.
func (ss *session) wakeWaiters(dir, path string, fresh []string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.wakeWaitersLocked(dir, path, fresh)
}

// wakeWaitersLocked is wakeWaiters for a caller that holds the mutex.
func (ss *session) wakeWaitersLocked(dir, path string, fresh []string) {
	for p := range ss.entries[dir] {
		if slices.Contains(p.localPredecessors, path) {
			p.wake(fresh)
		}
	}
}
