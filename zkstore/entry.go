package zkstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
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
	// counted is set while the entry counts the ends of all nodes before it. uncounted is how many
	// of them still stand. These nodes and the entry's own are watched on the connection conn.
	// since is the instant before the requests that set the watches. The session's mutex guards
	// these fields.
	counted   bool
	uncounted int
	conn      int
	since     driver.Instant
	// zxid is the transaction that made the node, 0 if the entry must not set its watches in one
	// request. batched is set if the entry has set its watches in one request.
	zxid    int64
	batched bool
	// handoff is set when the grant before the entry was released in this process. vanished is set
	// when the entry's own node was found to be gone.
	handoff, vanished bool
	// ahead are the holders that were not reported to the requester yet.
	ahead []node
}

// wake wakes an entry. The caller holds the session's mutex.
func (p *entry) wake(fresh []string) {
	p.fresh = fresh
	wakeup.Send(p.signal)
}

// notice handles an event of a node that the entry watches. The caller holds the session's mutex.
func (p *entry) notice(e zk.Event) {
	switch {
	case e.Type == zk.EventDeleted && e.Path == p.path:
		p.vanished = true
	case e.Type == zk.EventDeleted && p.counted:
		if p.uncounted--; p.uncounted == 0 {
			p.wake(nil)
		}
		return
	}
	p.counted = false // the watch of that node is used up
	p.wake(nil)
}

// first reports whether every node before the entry was seen to end while its own stood. The
// validity runs from the requests that set the watches, so after a longer wait the entry reads the
// queue again.
func (p *entry) first() bool {
	p.ss.mu.Lock()
	defer p.ss.mu.Unlock()
	if !p.counted || p.uncounted > 0 {
		return false
	}
	passed, _ := p.since.Elapsed()
	if passed > p.ss.ttl/4 {
		return false
	}
	p.at = p.since
	return true
}

// cleanupTimeout limits the cleanup of a call after its context has ended.
const cleanupTimeout = 300 * time.Millisecond

// cleanupContext returns a context for a cleanup, which does not end with the caller's.
func (s *Store) cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}

// enter creates the node of a request, and reads the directory in the same round trip. The
// transaction that creates the node also carries out the release o, unless that is nil.
func (ss *session) enter(ctx context.Context, r driver.Request, dir, mark string, data []byte, o *release) (*entry, []string, error) {
	prefix := dir + "/" + protected(r.ID) + mark
	for {
		guard, version := ss.guard()
		mark := ss.highest()
		base, known := ss.base()
		create := zk.CreateSequential(prefix, data, ss.s.cfg.acl)
		ops := []*zk.Call{zk.Check(guard, version), zk.Check(base, known.version)}
		releasing := o.pending()
		if releasing {
			ops = append(ops, o.op())
		}
		both, list := zk.Multi(append(ops, create)...), zk.Children(dir, false)
		calls := []*zk.Call{both, list}
		read := o.readNext(dir)
		if read != nil {
			calls = append(calls, read)
		}
		err := ss.zk.Do(ctx, calls...)
		if lost, ok := errors.AsType[*zk.LostError](err); ok {
			if ctx.Err() != nil {
				return nil, nil, ss.abandonCreate(ctx, r, dir, data, both, create, lost, o)
			}
			c, err := ss.findCreated(ctx, r, dir, both.Conn)
			switch {
			case err != nil:
				return nil, nil, err
			case c == nil:
				if releasing {
					o.lost = true
				}
				continue // create the node again
			}
			o.check(dir, c.names, nil)
			if releasing {
				o.done(dir, c.names)
			}
			p, err := ss.entry(r, dir, c.path, known.token(c.czxid), data, c.at)
			return p, c.names, err
		}
		switch {
		case err != nil:
			return nil, nil, ss.fail(err)
		case both.Err == nil:
			o.check(dir, list.Names, read)
			if releasing {
				o.done(dir, list.Names)
			}
			p, err := ss.entry(r, dir, create.Path, known.token(both.Zxid), data, both.Sent)
			if err != nil {
				return nil, nil, err
			}
			p.zxid = both.Zxid
			if list.Err != nil {
				return p, nil, ss.s.fail(list.Err)
			}
			return p, list.Names, nil
		case both.Failed == 0 && (errors.Is(both.Err, zk.ErrBadVersion) || errors.Is(both.Err, zk.ErrNoNode)):
			err = ss.reguard(ctx, guard)
		case both.Failed == 1 && errors.Is(both.Err, zk.ErrBadVersion):
			err = ss.raiseBase(ctx, mark) // another client has raised the base, or a restore has removed it
		case releasing && both.Failed == 2 && errors.Is(both.Err, zk.ErrNoNode):
			o.gone()
		case both.Failed == len(ops) && errors.Is(both.Err, zk.ErrNoNode):
			err = ss.ensure(ctx, dir)
		default:
			err = both.Err
		}
		if err != nil {
			return nil, nil, ss.fail(err)
		}
	}
}

// fail returns an error with a code, or errSessionExpired if the session has expired.
func (ss *session) fail(err error) error {
	if !ss.s.closed.Load() && ss.zk.Ended() != nil {
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

// created is the node of a create whose answer was lost.
type created struct {
	path  string
	czxid int64
	// names are the directory's children, and at is before the request that listed them.
	names []string
	at    driver.Instant
}

// abandonCreate ends a request whose caller has given up before the answer to its create. It waits
// for the answer for a moment. Without an answer the outcome is unknown, and the caller has to undo
// the request.
func (ss *session) abandonCreate(ctx context.Context, r driver.Request, dir string, data []byte, both, create *zk.Call, lost error, o *release) error {
	t := time.NewTimer(cleanupTimeout)
	defer t.Stop()
	answered := false
	select {
	case <-both.Done():
		_, lost := both.Err.(*zk.LostError)
		answered = !lost
	case <-t.C:
	}
	switch {
	case !answered:
		ss.s.remember(r.ID, ss, both.Conn)
		return ss.s.fail(lost)
	case both.Err != nil:
		return withdrawn(ctx)
	}
	if o.pending() {
		o.done(dir, nil)
	}
	p, err := ss.entry(r, dir, create.Path, ss.token(both.Zxid), data, both.Sent)
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
	get, list := zk.Get(found[0], false), zk.Children(dir, false)
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
		sync, list := zk.Sync(dir), zk.Children(dir, false)
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
func (s *Store) remember(id string, ss *session, conn int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubts[id] = doubt{ss, conn}
}

// forget removes the record of a request with an unknown outcome.
func (s *Store) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doubts, id)
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

// unregister ends the wake-ups of an entry. It returns the paths whose watches no entry needs now.
func (p *entry) unregister() (unwatched []string) {
	p.ss.mu.Lock()
	defer p.ss.mu.Unlock()
	return p.unregisterLocked()
}

func (p *entry) unregisterLocked() (unwatched []string) {
	ss := p.ss
	delete(ss.entries[p.dir], p)
	if len(ss.entries[p.dir]) == 0 {
		delete(ss.entries, p.dir)
	}
	// A watch of the own node stays: it is of use to the grant, and ends with the node.
	delete(ss.subs[p.path], p)
	if len(ss.subs[p.path]) == 0 {
		delete(ss.subs, p.path)
	}
	if g, ok := ss.ours[p.path]; ok && g == nil {
		delete(ss.ours, p.path)
	}
	return p.unsubscribeLocked(nil)
}

func (p *entry) subscribeLocked(path string) {
	subs := p.ss.subs[path]
	if subs == nil {
		subs = map[*entry]struct{}{}
		p.ss.subs[path] = subs
	}
	subs[p] = struct{}{}
}

// unsubscribeLocked removes all subscriptions except those to keep.
func (p *entry) unsubscribeLocked(keep []string) (unwatched []string) {
	for _, path := range p.subscribed {
		if slices.Contains(keep, path) {
			continue
		}
		subs, standing := p.ss.subs[path]
		delete(subs, p)
		if standing && len(subs) == 0 {
			delete(p.ss.subs, path)
			if _, own := p.ss.ours[path]; own {
				continue // the entry of that node may watch it
			}
			unwatched = append(unwatched, path)
		}
	}
	p.subscribed = slices.Clone(keep)
	return unwatched
}

// unwatched is called when the removal of watches has been sent. Another entry may have watched the
// same path before the removal. The server has one watch per session and path, so that entry lost
// its watch: it reads again and sets a new one. So do a Break that watches the node, and maintain
// for a grant of this client.
func (ss *session) unwatched(paths []string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, path := range paths {
		for p := range ss.subs[path] {
			p.counted = false
			p.wake(nil)
		}
		for t := range ss.trees {
			if t.path == path {
				wakeup.Send(t.ch)
			}
		}
		if g := ss.ours[path]; g != nil {
			g.watched = 0
			ss.wakeMaintain()
		}
	}
}

// withdraw removes an entry and returns why, if the server confirms that. It has a timeout of
// its own, since the caller's context may have ended.
func (p *entry) withdraw(ctx context.Context, why error) error {
	ss := p.ss
	unwatched := p.unregister()
	del := zk.Delete(p.path, -1)
	calls := []*zk.Call{del}
	for _, path := range unwatched {
		calls = append(calls, zk.RemoveWatches(path, zk.WatchData))
	}
	cleanup, cancel := ss.s.cleanupContext(ctx)
	defer cancel()
	defer ss.gone(p.dir, p.path, nil)
	defer ss.unwatched(unwatched)
	if err := ss.zk.Do(cleanup, calls...); err != nil {
		if ss.s.closed.Load() {
			return errClosed()
		}
		return &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	if del.Err != nil && !errors.Is(del.Err, zk.ErrNoNode) {
		return &driver.Error{Code: driver.CodeUnknown, Err: del.Err}
	}
	return why
}

// gone wakes the entries of this client that wait for another node of this client, which is gone.
// fresh is a list that was read since, or nil.
func (ss *session) gone(dir, path string, fresh []string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.goneLocked(dir, path, fresh)
}

func (ss *session) goneLocked(dir, path string, fresh []string) {
	for p := range ss.entries[dir] {
		if slices.Contains(p.localPredecessors, path) {
			p.wake(fresh)
		}
	}
}
