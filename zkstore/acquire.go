package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Acquire grants, queues or says no.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.attempt(ctx, r)
	if err != nil && r.Wait && ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable {
		return g, withdrawn(ctx) // nothing was sent
	}
	return g, err
}

func (s *Store) attempt(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch {
	case s.closed.Load():
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
	ttl := s.round(r.TTL)
	var old *session
	for {
		ss, err := s.session(ctx, ttl)
		if err == nil && old != nil {
			if err = ss.settle(ctx, r, old); err == nil {
				old = nil
			}
		}
		if err != nil {
			if old != nil && ctx.Err() == nil && ss != nil && ss.zk.Ended() != nil && !s.closed.Load() {
				continue
			}
			return driver.Grant{}, doubtful(old != nil, err)
		}
		g, err := s.recipe.acquire(ss, ctx, r)
		if err != errOver {
			return g, err
		}
		// The session is said to have expired: a waiting request begins anew, at the
		// end of the queue, once what it had there is certainly gone.
		old = ss
		s.remember(r.ID, ss, 0)
		if ctx.Err() != nil || s.closed.Load() {
			return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: errOver}
		}
	}
}

// doubtful keeps the doubt about what an earlier session has left.
func doubtful(again bool, err error) error {
	if again && driver.CodeOf(err) != driver.CodeClosed {
		return &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	return err
}

// acquire is the recipe of one queue.
func (ss *session) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	dir := ss.s.dir(r.Name)
	if !r.Wait {
		if err := ss.lookFirst(ctx, dir, r.Limit); err != nil {
			return driver.Grant{}, err
		}
	}
	data := encodeOwner(r.From.Owner(), ss.ttl, r.Limit)
	p, names, err := ss.enter(ctx, r, dir, ss.s.recipe.mark(r.Limit), data)
	if p == nil {
		return driver.Grant{}, err
	}
	told := false
	if err == nil {
		err = p.stand(ctx, names, &told)
	}
	if err == nil {
		return p.granted(ctx)
	}
	return driver.Grant{}, p.failed(ctx, err)
}

// lookFirst is for a try: where the answer is no it writes nothing, and disturbs
// nobody who waits.
func (ss *session) lookFirst(ctx context.Context, dir string, limit int) error {
	sync, list := zk.Sync(dir), zk.Children(dir, false)
	err := ss.zk.Do(ctx, sync, list)
	if err == nil {
		err = list.Err
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case err != nil:
		if failed := ss.fail(err); failed == errOver || driver.CodeOf(failed) != driver.CodeUnknown {
			return failed
		}
		return &driver.Error{Code: driver.CodeUnavailable, Err: err} // it was only read
	}
	all := append(nodesOf(list.Names, ss.s.recipe.read), node{limit: limit})
	if holding(all) == len(all) {
		return nil
	}
	return ss.busy(ctx, dir, all[:len(all)-1])
}

// busy is the answered no, with the holders as far as they can be read.
func (ss *session) busy(ctx context.Context, dir string, all []node) error {
	holders, _, err := ss.describe(ctx, dir, all[:min(holding(all), maxTold)])
	if err != nil {
		holders = nil
	}
	return &driver.BusyError{Holders: holders}
}

// maxTold bounds how many holders a busy answer tells.
const maxTold = 8

// errDeleted: somebody has deleted the place.
var errDeleted = driver.Errorf(driver.CodeUnavailable, "somebody has deleted the place in the queue")

// stand waits until the place is a grant. It answers a *driver.BusyError if the
// request does not wait.
func (p *place) stand(ctx context.Context, names []string, told *bool) error {
	ss, handed := p.ss, false
	for {
		all := nodesOf(names, p.read)
		switch i := indexOf(all, p.node.name); {
		case i < 0 && !handed:
			return errDeleted
		case i < 0: // it was read before our node was made
		case i < holding(all):
			return nil
		case !p.r.Wait:
			return ss.busy(ctx, p.dir, all[:i])
		default:
			gone, err := p.watch(ctx, all, i, told)
			if err == nil && !gone {
				err = p.sleep(ctx)
			}
			if err != nil {
				return err
			}
			if p.inherits() {
				p.at = driver.Now()
				return nil
			}
		}
		var err error
		if names, handed, err = p.list(ctx); err != nil {
			return err
		}
	}
}

// tellDelay is how long a place waits before it reads who holds the lock, for
// people, where that has not been read anyway.
const tellDelay = 100 * time.Millisecond

func (p *place) sleep(ctx context.Context) error {
	var late <-chan time.Time
	if len(p.ahead) > 0 {
		t := time.NewTimer(tellDelay)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-p.signal:
		return nil
	case <-late:
		holders, _, err := p.ss.describe(ctx, p.dir, p.ahead)
		p.ahead = nil
		if err == nil {
			p.r.From.Queued(holders)
		}
		return p.sleep(ctx)
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ss.over:
		return errOver
	}
}

// failed takes a place back whose waiting has ended with an error, and answers
// what that means for the request.
func (p *place) failed(ctx context.Context, err error) error {
	ss := p.ss
	switch {
	case ss.s.closed.Load():
		p.unregister()
		return errClosed()
	case ss.zk.Ended() != nil:
		p.unregister()
		if err = ss.fail(err); err == errOver {
			return err
		}
		// It ended here, and the place stands until it does at the server.
		ss.s.remember(p.r.ID, ss, 0)
		return &driver.Error{Code: driver.CodeUnknown, Err: err}
	case err == errDeleted:
		p.unregister()
		ss.gone(p.dir, p.path, nil)
		return err
	case ctx.Err() != nil:
		return p.withdraw(ctx, withdrawn(ctx))
	}
	return p.withdraw(ctx, ss.fail(err))
}

// list is the directory as somebody has just read it for us, or as it is now. It
// goes on through lost connections.
func (p *place) list(ctx context.Context) (names []string, handed bool, err error) {
	ss := p.ss
	ss.mu.Lock()
	fresh := p.fresh
	p.fresh = nil
	select {
	case <-p.signal: // what it told is in what is read from here on
	default:
	}
	ss.mu.Unlock()
	if fresh != nil {
		p.at = driver.Now()
		return fresh, true, nil
	}
	for {
		c := zk.Children(p.dir, false)
		err := ss.zk.Do(ctx, c)
		if err == nil {
			p.at = c.Sent
			return c.Names, false, c.Err
		}
		if _, lost := errors.AsType[*zk.LostError](err); !lost || ctx.Err() != nil {
			return nil, false, err
		}
	}
}

// watch sees to it that the place is woken when one of those goes that it waits
// for. It answers true if one has gone already. The first time it tells that the
// place stands.
func (p *place) watch(ctx context.Context, all []node, i int, told *bool) (gone bool, err error) {
	ss := p.ss
	var paths []string
	set := toWatch(all, i)
	ss.mu.Lock()
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
	unwatched := p.unsubscribeLocked(paths)
	for _, path := range paths {
		if ss.subs[path] == nil {
			ss.subs[path] = map[*place]struct{}{}
		}
		ss.subs[path][p] = struct{}{}
	}
	ss.mu.Unlock()

	var calls []*zk.Call
	for _, path := range paths {
		calls = append(calls, zk.Get(path, true))
	}
	for _, path := range unwatched {
		calls = append(calls, zk.RemoveWatches(path, zk.WatchData))
	}
	if len(calls) == 0 {
		p.tell(told, nil)
		return false, nil
	}
	err = ss.zk.Do(ctx, calls...)
	ss.unwatched(unwatched)
	if err != nil {
		if _, lost := errors.AsType[*zk.LostError](err); lost && ctx.Err() == nil {
			return true, nil // look again, on the next connection
		}
		return false, err
	}
	for _, c := range calls[:len(paths)] {
		if errors.Is(c.Err, zk.ErrNoNode) {
			gone = true
		} else if c.Err != nil {
			return false, c.Err
		}
	}
	// Of the holders, those that were read anyway.
	var holders []driver.Holder
	for j, c := range calls[:len(paths)] {
		if h := indexOf(all, paths[j][len(p.dir)+1:]); c.Err == nil && h >= 0 && h < holding(all) {
			holders = append(holders, ss.holderOf(all[h], c))
		}
	}
	if len(holders) == 0 && !*told {
		p.ahead = all[:min(holding(all), maxTold)]
	}
	p.tell(told, holders)
	return gone, nil
}

func (p *place) tell(told *bool, holders []driver.Holder) {
	if !*told {
		*told = true
		p.r.From.Queued(holders)
	}
}

// granted makes a place a grant. The session is proven to stand for the TTL from
// before the request that told of it, which was sent after the wait.
func (p *place) granted(ctx context.Context) (driver.Grant, error) {
	ss := p.ss
	at := p.at
	if ss.zk.Proven(at) < ss.ttl && !ss.zk.Prove(ctx, at, ss.ttl) {
		err := ctx.Err()
		if err == nil {
			err = errOver
		}
		return driver.Grant{}, p.failed(ctx, err)
	}
	unwatched := p.unregister()
	g := &grant{
		Grant: driver.Grant{ID: p.r.ID, Name: p.r.Name, Limit: p.r.Limit, Token: p.token, SentAt: at, TTL: ss.ttl, Slot: driver.NoSlot},
		ss:    ss, from: p.r.From, dir: p.dir, path: p.path, sent: at, ttl: ss.ttl, made: time.Now(),
	}
	g.Handle = g
	ss.mu.Lock()
	if ss.ended {
		ss.mu.Unlock()
		return driver.Grant{}, ss.fail(errOver)
	}
	if p.vanished {
		ss.mu.Unlock()
		return driver.Grant{}, p.failed(ctx, errDeleted)
	}
	ss.grants[g.ID], ss.ours[g.path] = g, g
	idle := !ss.maintaining
	ss.maintaining = true
	ss.mu.Unlock()
	if idle {
		ss.wakeMaintain() // not for each of many short locks: the timer runs on for a while
	}
	var calls []*zk.Call
	if data := encodeOwner(p.r.From.Owner(), ss.ttl, p.r.Limit); string(data) != string(p.data) {
		// Another goroutine has inherited the place. Only where nobody has written
		// since: that would be a request to end.
		calls = append(calls, zk.Set(p.path, data, 0))
	}
	for _, path := range unwatched {
		calls = append(calls, zk.RemoveWatches(path, zk.WatchData))
	}
	if len(calls) > 0 {
		_ = ss.zk.Send(ctx, calls...) // for people and tidiness: nothing depends on it
		ss.unwatched(unwatched)
	}
	return g.Grant, nil
}
