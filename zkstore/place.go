package zkstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// place is a node of ours that is not, or not yet, a grant.
type place struct {
	ss    *session
	r     driver.Request
	dir   string
	read  func(string) (node, bool) // the directory's children
	node  node
	path  string
	token uint64
	data  []byte
	// at is before the request that told that the place is a grant, once it is one.
	at driver.Instant

	// signal holds one: there is something to look at. Under the session's mutex,
	// fresh is a list that somebody has read since, nil if it must be read.
	signal chan struct{}
	fresh  []string
	// subscribed are the paths in the session's subs, and localPredecessors the nodes of
	// this client that the entry waits for without a watch.
	subscribed, localPredecessors []string
	// heir: the grant before it has been released in this process. vanished: and then
	// its own node was not there.
	heir, vanished bool
	// ahead are the holders that the requester has not been told of.
	ahead []node
}

// look wakes a place. The session is locked.
func (p *place) look(fresh []string) {
	p.fresh = fresh
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// cleanupTimeout bounds what a call still does after its context has ended.
const cleanupTimeout = 300 * time.Millisecond

// cleanupContext returns a context for a cleanup, which does not end with the caller's.
func (s *Store) cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}

// enter makes the node of a request, and reads the directory with it in one round
// trip.
func (ss *session) enter(ctx context.Context, r driver.Request, dir, mark string, data []byte) (*place, []string, error) {
	prefix := dir + "/" + protected(r.ID) + mark
	for {
		guard, version := ss.guard()
		mark := ss.highest()
		base, known := ss.base()
		create := zk.CreateSequential(prefix, data, ss.s.cfg.acl)
		both, list := zk.Multi(zk.Check(guard, version), zk.Check(base, known.version), create), zk.Children(dir, false)
		err := ss.zk.Do(ctx, both, list)
		if lost, ok := errors.AsType[*zk.LostError](err); ok {
			if ctx.Err() != nil {
				return nil, nil, ss.abandonCreate(ctx, r, dir, data, both, create, lost)
			}
			c, err := ss.findCreated(ctx, r, dir, both.Conn)
			switch {
			case err != nil:
				return nil, nil, err
			case c == nil:
				continue // it is made again
			}
			p, err := ss.place(r, dir, c.path, known.token(c.czxid), data, c.at)
			return p, c.names, err
		}
		switch {
		case err != nil:
			return nil, nil, ss.fail(err)
		case both.Err == nil:
			p, err := ss.place(r, dir, create.Path, known.token(both.Zxid), data, both.Sent)
			if err != nil {
				return nil, nil, err
			}
			if list.Err != nil {
				return p, nil, ss.s.fail(list.Err)
			}
			return p, list.Names, nil
		case both.Failed == 0 && (errors.Is(both.Err, zk.ErrBadVersion) || errors.Is(both.Err, zk.ErrNoNode)):
			err = ss.reguard(ctx, guard)
		case both.Failed == 1 && errors.Is(both.Err, zk.ErrBadVersion):
			err = ss.raiseBase(ctx, mark) // another client has, or it is gone with a restore
		case both.Failed == 2 && errors.Is(both.Err, zk.ErrNoNode):
			err = ss.ensure(ctx, dir)
		default:
			err = both.Err
		}
		if err != nil {
			return nil, nil, ss.fail(err)
		}
	}
}

// fail tells the end of the session apart, after which nothing of it stands.
func (ss *session) fail(err error) error {
	if !ss.s.closed.Load() && ss.zk.Ended() != nil {
		if errors.Is(ss.zk.Ended(), zk.ErrExpired) {
			return errOver
		}
		return ss.s.fail(ss.zk.Ended())
	}
	return ss.s.fail(err)
}

// place is a node that was made, from now on to be woken.
func (ss *session) place(r driver.Request, dir, path string, token uint64, data []byte, at driver.Instant) (*place, error) {
	p := &place{ss: ss, r: r, dir: dir, path: path, token: token, data: data, at: at, signal: make(chan struct{}, 1)}
	p.read = ss.s.recipe.reader(dir, r.Limit)
	var ok bool
	if p.node, ok = p.read(path[len(dir)+1:]); !ok {
		return nil, driver.Errorf(driver.CodeUnknown, "the server made a node %q", path)
	}
	p.register()
	return p, nil
}

// created is a node that a create whose answer was lost has made.
type created struct {
	path  string
	czxid int64
	// names are the directory's children, and at is before the request that listed them.
	names []string
	at    driver.Instant
}

// abandonCreate ends a request whose caller has given up before the answer to its create
// came. The answer may be on its way; without it the request is left in doubt, for Undo.
func (ss *session) abandonCreate(ctx context.Context, r driver.Request, dir string, data []byte, both, create *zk.Call, lost error) error {
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
	p, err := ss.place(r, dir, create.Path, ss.token(both.Zxid), data, both.Sent)
	if err != nil {
		return err
	}
	return p.withdraw(ctx, withdrawn(ctx))
}

// findCreated returns the node of a create that was sent on a connection which was lost
// before the answer came; nil if there is none, and can no longer be. It goes on through
// further lost connections. Where it cannot, the request is left in doubt, for Undo.
func (ss *session) findCreated(ctx context.Context, r driver.Request, dir string, conn int) (*created, error) {
	for {
		c, err := ss.lookForCreated(ctx, r.ID, dir, conn)
		if err == nil {
			return c, nil
		}
		if ctx.Err() == nil {
			if ss.fail(err) == errOver {
				return nil, errOver
			}
			if _, lost := errors.AsType[*zk.LostError](err); lost || errors.Is(err, zk.ErrNoNode) {
				continue
			}
		}
		ss.s.remember(r.ID, ss, conn)
		return nil, ss.s.fail(&zk.LostError{Err: err})
	}
}

// lookForCreated is one attempt. ErrNoNode says that a node was there, and is not.
func (ss *session) lookForCreated(ctx context.Context, id, dir string, conn int) (*created, error) {
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
		// Of an earlier session, and about to go (CURATOR-604): it is deleted, and the
		// request made again.
		_ = ss.zk.Do(ctx, zk.Delete(found[0], -1))
		return nil, zk.ErrNoNode
	}
	return &created{found[0], get.Stat.Czxid, list.Names, list.Sent}, nil
}

// find lists the nodes of a request in a directory, after everything that was
// sent on an earlier connection has come to pass or can no longer.
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
				continue // it reconnected between the two
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
			if hasPrefix(name, protected(id)) {
				found = append(found, dir+"/"+name)
			}
		}
		return found, nil
	}
}

func hasPrefix(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// remember puts a request in doubt.
func (s *Store) remember(id string, ss *session, conn int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubts[id] = doubt{ss, conn}
}

// forget ends the doubt about a request.
func (s *Store) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doubts, id)
}

// register makes a place one that can be woken.
func (p *place) register() {
	ss := p.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := ss.places[p.dir]
	if all == nil {
		all = map[*place]struct{}{}
		ss.places[p.dir] = all
	}
	all[p] = struct{}{}
	if !ss.ended {
		ss.ours[p.path] = nil
	}
}

// unregister ends that; it answers the paths whose watches nobody here wants any
// more.
func (p *place) unregister() (unwatched []string) {
	ss := p.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.places[p.dir], p)
	if len(ss.places[p.dir]) == 0 {
		delete(ss.places, p.dir)
	}
	if g, ok := ss.ours[p.path]; ok && g == nil {
		delete(ss.ours, p.path)
	}
	return p.unsubscribeLocked(nil)
}

// unsubscribeLocked forgets all subscriptions but those to keep.
func (p *place) unsubscribeLocked(keep []string) (unwatched []string) {
	for _, path := range p.subscribed {
		if slices.Contains(keep, path) {
			continue
		}
		subs, standing := p.ss.subs[path]
		delete(subs, p)
		if standing && len(subs) == 0 {
			delete(p.ss.subs, path)
			unwatched = append(unwatched, path)
		}
	}
	p.subscribed = slices.Clone(keep)
	return unwatched
}

// unwatched is called when the removal of watches has been sent. Another place may have
// come for one of them since it was decided, and its watch have been sent ahead of the
// removal: it looks again, and watches behind it. So does a Break that watches the node,
// and maintain for a grant of our own: to the server the watches of one session on a path are
// one.
func (ss *session) unwatched(paths []string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, path := range paths {
		for p := range ss.subs[path] {
			p.look(nil)
		}
		for t := range ss.trees {
			if t.path == path {
				signal(t.ch)
			}
		}
		if g := ss.ours[path]; g != nil {
			g.watched = 0
			ss.wakeMaintain()
		}
	}
}

// withdraw takes a place back and answers why, if that is confirmed. What a
// caller's context wanted is bounded by one of our own.
func (p *place) withdraw(ctx context.Context, why error) error {
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

// gone wakes those of our places that wait for one of our own nodes, which is not
// ours any more. Where somebody has read the directory since, they need not.
func (ss *session) gone(dir, path string, fresh []string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.goneLocked(dir, path, fresh)
}

func (ss *session) goneLocked(dir, path string, fresh []string) {
	for p := range ss.places[dir] {
		if slices.Contains(p.localPredecessors, path) {
			p.look(fresh)
		}
	}
}
