package zkstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Acquire returns a grant, waits in the queue, or returns an error.
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.acquire(ctx, r, nil)
}

// acquire implements Acquire and Swap: unless o is nil, it also carries out the release o. If
// possible, the transaction that creates the first node of r does that.
func (s *store) acquire(ctx context.Context, r driver.Request, o *release) (driver.Grant, error) {
	switch {
	case s.calls.Stopped():
		return driver.Grant{}, errClosed()
	case !s.recipe.supports(r.Limit):
		return driver.Grant{}, driver.Errorf(driver.CodeUnsupported, "zkstore: the layout %s has no locks of limit %d", s.cfg.layout, r.Limit)
	case ctx.Err() != nil:
		return driver.Grant{}, withdrawn(ctx)
	}
	s.mu.Lock()
	s.acquiring[r.ID] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.acquiring, r.ID)
	}()
	g, err := s.acquireInSession(ctx, r, o)
	if err != nil && r.Wait && ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable {
		return g, withdrawn(ctx) // the request has left nothing
	}
	return g, err
}

// acquireInSession acquires in the session for the TTL of r. If that session expires before the
// grant, the request starts again in the next session, at the end of the queue.
func (s *store) acquireInSession(ctx context.Context, r driver.Request, o *release) (driver.Grant, error) {
	ttl := s.round(r.TTL)
	var expired *session // an earlier session of the request, which may still have a node of it
	for {
		ss, err := s.sessionWithRelease(ctx, ttl, o)
		if err == nil && expired != nil {
			err = ss.undoAfterEnd(ctx, r, expired)
		}
		switch {
		case err == nil:
		case expired == nil || driver.CodeOf(err) == driver.CodeClosed:
			return driver.Grant{}, err
		case ss != nil && ss.zk.Ended() != nil && ctx.Err() == nil && !s.calls.Stopped():
			continue // this session has ended, too: undo the request in the next one
		default:
			return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: err}
		}
		g, err := s.recipe.acquire(ss, ctx, r, o)
		if err != errSessionExpired {
			return g, err
		}
		expired = ss
		s.remember(r.ID, ss, 0)
		if ctx.Err() != nil || s.calls.Stopped() {
			return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: errSessionExpired}
		}
	}
}

// sessionWithRelease returns the session for a TTL. If o has a grant of another session, it first
// carries out o in a transaction of its own.
func (s *store) sessionWithRelease(ctx context.Context, ttl time.Duration, o *release) (*session, error) {
	if o.pending() && (o.g.ss.ttl != ttl || o.g.ss.zk.Ended() != nil) {
		o.releaseAlone(ctx) // before the call of session: a new session may take a while to begin
	}
	ss, err := s.session(ctx, ttl)
	if o.pending() && ss != nil && ss != o.g.ss {
		o.releaseAlone(ctx)
	}
	return ss, err
}

// acquire implements Acquire for the layouts with a single queue.
func (ss *session) acquire(ctx context.Context, r driver.Request, o *release) (driver.Grant, error) {
	dir := ss.s.dir(r.Name)
	if !r.Wait {
		if err := ss.refuseIfHeld(ctx, dir, r.Limit); err != nil {
			return driver.Grant{}, err
		}
	}
	data := ss.data(r)
	p, names, err := ss.enter(ctx, r, dir, ss.s.recipe.mark(r.Limit), data, o)
	if p == nil {
		return driver.Grant{}, err
	}
	queued := false
	if err == nil {
		err = p.awaitGrant(ctx, names, &queued)
	}
	if err == nil {
		return p.granted(ctx)
	}
	return driver.Grant{}, p.failed(ctx, err)
}

// refuseIfHeld returns an error if the name is held. It is for requests that do not wait: it writes
// nothing and disturbs no waiter.
func (ss *session) refuseIfHeld(ctx context.Context, dir string, limit int) error {
	sync, list := zk.Sync(dir), zk.Children(dir)
	err := ss.zk.Do(ctx, sync, list)
	if err == nil {
		err = list.Err
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case err != nil:
		return ss.readFailed(err)
	}
	all := append(nodesOf(list.Names, ss.s.recipe.read), node{limit: limit})
	if countGrants(all) == len(all) {
		return nil
	}
	return ss.busy(ctx, dir, all[:len(all)-1])
}

// busy returns the BusyError, with the holders as far as they can be read, or the error of a broken one.
func (ss *session) busy(ctx context.Context, dir string, all []node) error {
	n := min(countGrants(all), maxBusyHolders)
	holders, _, err := ss.describe(ctx, dir, all[:n], n)
	if isBroken(err) {
		return err
	}
	return &driver.BusyError{Holders: holders}
}

// maxBusyHolders is the largest number of holders in a BusyError.
const maxBusyHolders = 8

// errDeleted is the error of a queue entry that another client has deleted.
var errDeleted = driver.Errorf(driver.CodeUnavailable, "another client has deleted the queue entry")

// awaitGrant waits until the queue entry is a grant. names are the nodes of the directory. queued is
// set when the requester has been notified that the request waits. If the request must not wait,
// awaitGrant returns a *driver.BusyError.
func (p *entry) awaitGrant(ctx context.Context, names []string, queued *bool) error {
	reused := false
	for {
		all := nodesOf(names, p.read)
		switch i := indexOf(all, p.node.name); {
		case i < 0 && !reused:
			return errDeleted
		case i < 0: // the list may be older than the entry
		case i < countGrants(all):
			return nil
		case !p.r.Wait:
			return p.ss.busy(ctx, p.dir, all[:i])
		default:
			changed, err := p.watch(ctx, all, i, queued)
			if err == nil && !changed {
				err = p.sleep(ctx)
			}
			if err != nil || p.grantedMeanwhile() {
				return err
			}
		}
		var err error
		if names, reused, err = p.list(ctx); err != nil {
			return err
		}
	}
}

// queuedDelay is how long an entry waits before it reads the holders to report them, unless it has
// read them already.
const queuedDelay = 100 * time.Millisecond

// sleep waits until the entry is woken. After queuedDelay it reports the holders that were not
// reported yet.
func (p *entry) sleep(ctx context.Context) error {
	var late <-chan time.Time
	if len(p.unreported) > 0 {
		t := time.NewTimer(queuedDelay)
		defer t.Stop()
		late = t.C
	}
	for {
		select {
		case <-p.signal:
			return nil
		case <-late:
			if err := p.reportHolders(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ss.over:
			return errSessionExpired
		}
	}
}

// reportHolders reads the holders that were not reported yet, and reports them to the requester.
func (p *entry) reportHolders(ctx context.Context) error {
	holders, _, err := p.ss.describe(ctx, p.dir, p.unreported, len(p.unreported))
	p.unreported = nil
	switch {
	case err == nil:
		p.r.From.Queued(holders)
	case isBroken(err):
		return err
	}
	return nil // the entry waits even if the read has failed
}

// failed withdraws an entry whose wait has ended with an error, and returns the error of the
// request.
func (p *entry) failed(ctx context.Context, err error) error {
	ss := p.ss
	switch {
	case ss.s.calls.Stopped():
		p.unregister()
		return errClosed()
	case ss.zk.Ended() != nil:
		p.unregister()
		if err = ss.fail(err); err == errSessionExpired {
			return err
		}
		// The session has ended for this client. The entry exists until the session ends at the
		// server.
		ss.s.remember(p.r.ID, ss, 0)
		return &driver.Error{Code: driver.CodeUnknown, Err: err}
	case err == errDeleted:
		p.unregister()
		ss.wakeWaiters(p.dir, p.path, nil)
		return err
	case ctx.Err() != nil:
		return p.withdraw(ctx, withdrawn(ctx))
	}
	return p.withdraw(ctx, ss.fail(err))
}

// list returns the nodes of the directory. It reuses the list that another call of this client has
// left in fresh. Without one it reads the directory, and continues over new connections.
func (p *entry) list(ctx context.Context) (names []string, reused bool, err error) {
	ss := p.ss
	ss.mu.Lock()
	fresh := p.fresh
	p.fresh = nil
	select {
	case <-p.signal: // the list is read after every change that was signalled
	default:
	}
	ss.mu.Unlock()
	if fresh != nil {
		p.at = driver.Now()
		return fresh, true, nil
	}
	for {
		c := zk.Children(p.dir)
		switch err := ss.zk.Do(ctx, c); {
		case err == nil:
			p.at = c.Sent
			return c.Names, false, c.Err
		case !ss.again(ctx, err):
			return nil, false, err
		}
	}
}

// watch ensures that the entry is woken when a node that it waits for is deleted. The entry is at
// index i of the queue. The first call reports to the requester that it is queued.
//
// Here and in the other methods of entry, changed reports that the entry must not sleep, because the
// queue has changed or may have changed.
func (p *entry) watch(ctx context.Context, all []node, i int, queued *bool) (changed bool, err error) {
	paths, counting := p.subscribe(all, i)
	grants := all[:countGrants(all)]
	changed, holders, err := p.watchByReads(ctx, paths, counting, grants)
	if err != nil {
		return false, err
	}
	if !*queued {
		*queued = true
		p.r.From.Queued(holders)
		if len(holders) == 0 {
			p.unreported = grants[:min(len(grants), maxBusyHolders)]
		}
	}
	return changed, nil
}

// subscribe chooses the nodes that the entry waits for, and makes it receive their events. It
// returns the paths to watch, and whether the entry counts the nodes before it. The entry is at index
// i of the queue. A watch that no entry needs any more stays at the server: it ends with its node.
func (p *entry) subscribe(all []node, i int) (paths []string, counting bool) {
	ss := p.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	set, counting := p.toWatchLocked(all, i)
	p.localPredecessors = p.localPredecessors[:0]
	for _, n := range set {
		path := p.dir + "/" + n.name
		// A node of this client needs no watch: the code that deletes it wakes this
		// entry, and maintain notices a deletion by another client.
		if g, own := ss.ours[path]; own {
			p.localPredecessors = append(p.localPredecessors, path)
			if g == nil && !ss.checkingLocal {
				ss.checkingLocal = true
				ss.wakeMaintain()
			}
		} else {
			paths = append(paths, path)
		}
	}
	p.unsubscribeLocked()
	p.subscribed = paths
	for _, path := range paths {
		p.subscribeLocked(path)
	}
	if p.counting, p.remaining = counting, len(paths); counting {
		p.subscribeLocked(p.path)
	}
	return paths, counting
}

// watchByReads sets the watches of paths by reads, and that of the entry's own node if it counts. It
// returns the holders among grants that were read anyway.
func (p *entry) watchByReads(ctx context.Context, paths []string, counting bool, grants []node) (changed bool, holders []driver.Holder, err error) {
	ss := p.ss
	var calls []*zk.Call
	for _, path := range paths {
		calls = append(calls, zk.Get(path, true))
	}
	if counting {
		calls = append(calls, zk.Get(p.path, true))
	}
	if len(calls) == 0 {
		return false, nil, nil
	}
	if err = ss.zk.Do(ctx, calls...); err != nil {
		ss.mu.Lock()
		p.counting = false
		ss.mu.Unlock()
		if ss.again(ctx, err) {
			return true, nil, nil // read again, on the next connection
		}
		return false, nil, err
	}
	if changed, err = p.watchesSet(paths, calls); err != nil {
		return false, nil, err
	}
	for j, c := range calls[:len(paths)] {
		if h := indexOf(grants, paths[j][len(p.dir)+1:]); c.Err == nil && h >= 0 {
			holder, err := ss.holderOf(p.dir, grants[h], c)
			if err != nil {
				return false, nil, err
			}
			holders = append(holders, holder)
		}
	}
	return changed, holders, nil
}

// watchesSet handles the answers to the reads of paths. If the entry counts them, its own node is
// read after them.
func (p *entry) watchesSet(paths []string, calls []*zk.Call) (changed bool, err error) {
	ss := p.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for j, path := range paths {
		switch err := calls[j].Err; {
		case errors.Is(err, zk.ErrNoNode) && p.counting:
			// If no older watch has reported the end of the node, no watch will.
			if _, subscribed := ss.subs[path][p]; subscribed {
				delete(ss.subs[path], p)
				p.remaining--
			}
		case errors.Is(err, zk.ErrNoNode):
			changed = true
		case err != nil:
			return false, err
		}
	}
	if !p.counting {
		return changed, nil
	}
	p.conn, p.since = calls[0].Conn, calls[0].Sent
	switch own := calls[len(paths)]; {
	case errors.Is(own.Err, zk.ErrNoNode):
		p.counting = false
		return true, nil // read again
	case own.Err != nil:
		return false, own.Err
	case string(own.Data) == revoke:
		// The request to end came before the watch, so no watch reports it. Without the count,
		// maintain reads the grant's node once more.
		p.counting = false
	}
	return p.remaining == 0, nil
}

// maxCounted is the largest number of nodes before an entry that watches all of them.
const maxCounted = 3

// toWatchLocked returns the nodes that an entry waits for. counting reports that these are all the
// nodes before it. Then the entry need not read the queue when they have gone. An entry further
// behind waits for the node two positions before it, so that it reads the queue one release before
// its grant.
//
// Nodes of other client libraries are not counted: Curator's holder of a write lock may put the node
// of a reader beside its own, before the entry. Nodes of this client are not counted either, because
// they are not watched.
func (p *entry) toWatchLocked(all []node, i int) (set []node, counting bool) {
	own := func(n node) bool {
		_, own := p.ss.ours[p.dir+"/"+n.name]
		return own
	}
	switch {
	case p.node.limit != driver.Exclusive:
	case i > maxCounted:
		if !own(all[i-2]) {
			return all[i-2 : i-1], false
		}
	case !slices.ContainsFunc(all[:i], func(n node) bool { return own(n) || !isProtected(n.name) }):
		return all[:i], true // mutation: zookeeper-counted
	}
	return toWatch(all, i), false
}

// granted makes an entry a grant. The grant's validity begins at p.at, and the session has to be
// proven for a whole TTL from that instant.
func (p *entry) granted(ctx context.Context) (driver.Grant, error) {
	ss := p.ss
	if ss.zk.Proven(p.at) < ss.ttl && !ss.zk.Prove(ctx, p.at, ss.ttl) {
		err := ctx.Err()
		if err == nil {
			err = errSessionExpired
		}
		return driver.Grant{}, p.failed(ctx, err)
	}
	g, err := p.registerGrant()
	if err != nil {
		return driver.Grant{}, p.failed(ctx, err)
	}
	if data := ss.data(p.r); string(data) != string(p.data) {
		// The entry has passed to another local waiter, so its owner has changed. The check of the
		// version ensures that this write does not overwrite a request to end.
		_ = ss.zk.Send(ctx, zk.Set(p.path, data, 0)) // the grant does not depend on the outcome
	}
	return g.Grant, nil
}

// registerGrant replaces the entry by its grant. It fails with errSessionExpired if the session is
// over, and with errDeleted if the entry's node was deleted.
func (p *entry) registerGrant() (*grant, error) {
	ss := p.ss
	g := &grant{
		Grant: driver.Grant{ID: p.r.ID, Name: p.r.Name, Limit: p.r.Limit, Token: p.token, Tokens: ss.s.tokens(p.r),
			SentAt: p.at, TTL: ss.ttl, Slot: driver.NoSlot},
		ss: ss, from: p.r.From, dir: p.dir, path: p.path, sent: p.at, ttl: ss.ttl, made: time.Now(),
	}
	g.Handle = g
	ss.mu.Lock()
	defer ss.mu.Unlock()
	p.unregisterLocked()
	switch {
	case ss.ended:
		return nil, errSessionExpired
	case p.deleted:
		return nil, errDeleted
	}
	if p.counting {
		g.watched = p.conn
	}
	ss.grants[g.ID], ss.ours[g.path] = g, g
	if !ss.maintaining {
		ss.maintaining = true
		ss.wakeMaintain() // once for many short locks: the timer of maintain continues for a while
	}
	return g, nil
}
