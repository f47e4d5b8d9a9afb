package zkstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// standing finds the grant that a caller means.
func (s *Store) standing(dg driver.Grant) *grant {
	if g, ok := dg.Handle.(*grant); ok && g.is(dg) {
		return g
	}
	for _, ss := range s.open() {
		ss.mu.Lock()
		g := ss.grants[dg.ID]
		ss.mu.Unlock()
		if g != nil && g.is(dg) {
			return g
		}
	}
	return nil
}

// is tells whether a grant stands and is the one meant.
func (g *grant) is(dg driver.Grant) bool {
	g.ss.mu.Lock()
	defer g.ss.mu.Unlock()
	return g.ss.grants[dg.ID] == g && g.Token == dg.Token && g.Name == dg.Name
}

// Release ends a grant. The node's name is used once, so that deleting it proves
// that it still stood. Where this client waits for the name as well, the list that
// tells who is next is read in the same round trip.
func (s *Store) Release(ctx context.Context, dg driver.Grant, _ time.Duration) error {
	if s.closed.Load() {
		return errClosed()
	}
	g := s.standing(dg)
	if g == nil {
		return s.clear(ctx, dg)
	}
	gone, err := g.remove(ctx)
	switch {
	case err != nil && s.closed.Load():
		return errClosed()
	case err != nil && g.ss.zk.Ended() != nil:
		return s.clear(ctx, dg)
	case err != nil:
		return s.fail(err)
	case gone:
		return notHeld(dg)
	}
	return nil
}

// clear is the release of a grant that does not stand: where its session was said to
// have expired, its node may yet, and where the user was refused it does.
func (s *Store) clear(ctx context.Context, dg driver.Grant) error {
	g, ok := dg.Handle.(*grant)
	if !ok || g.ss.s != s || g.ss.zk.Ended() == nil {
		return notHeld(dg)
	}
	ss, err := s.any(ctx)
	if err != nil {
		return err
	}
	if err := ss.settle(ctx, driver.Request{ID: dg.ID, Name: dg.Name}, g.ss); err != nil {
		return err
	}
	return notHeld(dg)
}

// remove deletes the node. It answers true if the grant had been lost before.
func (g *grant) remove(ctx context.Context) (gone bool, err error) {
	ss := g.ss
	ss.mu.Lock()
	g.ending, g.busy = true, true
	heir := g.handOffLocked()
	waiting := len(ss.places[g.dir]) > 0
	ss.mu.Unlock()
	del := zk.Delete(g.path, -1)
	calls := []*zk.Call{del}
	var list, look *zk.Call
	switch {
	case heir != nil:
		look = zk.Get(heir.path, false)
		calls = append(calls, look)
	case waiting:
		list = zk.Children(g.dir, false)
		calls = append(calls, list)
	}
	err = ss.zk.Do(ctx, calls...)
	if err == nil && del.Err != nil && !errors.Is(del.Err, zk.ErrNoNode) {
		err = del.Err
	}
	if look != nil && err == nil && errors.Is(look.Err, zk.ErrNoNode) {
		heir.revokeHandoff()
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	g.busy = false
	if err != nil {
		return false, err
	}
	gone = g.taken != "" || del.Err != nil
	ss.forgetLocked(g)
	if list != nil && list.Err == nil {
		ss.goneLocked(g.dir, g.path, list.Names)
	}
	return gone, nil
}

// handOffLocked grants to the next place in the queue, if that is ours as well,
// without waiting for the release to be confirmed: an exclusive grant is the first
// in the queue, an exclusive place that waits for nothing but it is the second, and
// whoever comes behind that waits for both. It answers that place, nil if there is
// none.
func (g *grant) handOffLocked() *place {
	if g.Limit != driver.Exclusive {
		return nil
	}
	for p := range g.ss.places[g.dir] {
		if p.node.limit == driver.Exclusive && len(p.subscribed) == 0 && len(p.localPredecessors) == 1 && p.localPredecessors[0] == g.path {
			p.heir = true
			p.look(nil)
			return p
		}
	}
	return nil
}

// deposed is called when the node of a place is not there to which a grant was passed on:
// unless it was released meanwhile, somebody has deleted it.
func (p *place) revokeHandoff() {
	ss := p.ss
	var told *grant
	ss.mu.Lock()
	p.vanished = true // it may not be a grant yet
	if g := ss.ours[p.path]; g != nil && !g.ending {
		told = ss.loseLocked(g, driver.CauseTaken)
	}
	ss.mu.Unlock()
	if told != nil {
		told.from.Lost(driver.CauseTaken, errors.New("its node was deleted"))
	}
}

// inherits tells whether the grant before a place was passed on to it.
func (p *place) inherits() bool {
	p.ss.mu.Lock()
	defer p.ss.mu.Unlock()
	return p.heir
}

// Renew asks the leader once for all the grants of a session, and counts trust from
// then as far as the session's proof reaches.
func (s *Store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	found := make([]*grant, len(grants))
	asked := map[*session]*heartbeat{}
	for i, dg := range grants {
		switch g := s.standing(dg); {
		case s.closed.Load():
			answers[i].Err = errClosed()
		case g == nil:
			answers[i] = driver.Renewal{Cause: driver.CauseGone, Err: notHeld(dg)}
		default:
			found[i] = g
			asked[g.ss] = &heartbeat{}
		}
	}
	var asking sync.WaitGroup
	for ss, b := range asked {
		asking.Go(func() { b.at, b.err = ss.ask(ctx) })
	}
	asking.Wait()
	for i, g := range found {
		if g == nil {
			continue
		}
		if b := asked[g.ss]; b.err != nil && g.ss.zk.Ended() == nil {
			answers[i].Err = s.fail(b.err)
		} else {
			answers[i] = g.renew(ctx, b.at)
		}
	}
	return answers
}

// heartbeat is what became of asking the leader about one session.
type heartbeat struct {
	at  driver.Instant
	err error
}

func (ss *session) ask(ctx context.Context) (driver.Instant, error) {
	at := driver.Now()
	c := zk.Sync("/")
	if err := ss.zk.Do(ctx, c); err != nil {
		return at, err
	}
	return at, c.Err
}

func (g *grant) renew(ctx context.Context, at driver.Instant) driver.Renewal {
	ss := g.ss
	sent, ttl := at, g.TTL
	if ss.zk.Proven(at) < ttl && !ss.zk.Prove(ctx, at, ttl) {
		// Less than that is known: as much as is.
		sent, ttl = ss.zk.Proof()
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	passed, _ := g.sent.Elapsed()
	switch {
	case g.ending && ss.grants[g.ID] == g:
		return driver.Renewal{Err: driver.Errorf(driver.CodeUnavailable, "its release is not confirmed yet")}
	case ss.grants[g.ID] != g || g.taken != "":
		cause := g.taken
		if cause == "" {
			cause = driver.CauseGone
		}
		return driver.Renewal{Cause: cause, Err: notHeld(g.Grant)}
	case passed >= g.ttl:
		ss.wakeMaintain()
		return driver.Renewal{Cause: driver.CauseExpired, Err: notHeld(g.Grant)}
	case zk.Between(g.sent, sent) <= g.ttl-ttl:
		return driver.Renewal{Err: driver.Errorf(driver.CodeUnavailable, "no answer of the leader's has come since the last renewal")}
	}
	g.sent, g.ttl = sent, ttl
	return driver.Renewal{SentAt: sent, TTL: ttl}
}

// Undo removes a place or a grant by its ID. A create that is still on its way on
// a connection that is lost is made void first; then a sync makes everything
// visible that was done.
func (s *Store) Undo(ctx context.Context, r driver.Request) error {
	if s.closed.Load() {
		return errClosed()
	}
	s.mu.Lock()
	d, doubted := s.doubts[r.ID]
	s.mu.Unlock()
	if doubted && d.ss.zk.Ended() == nil {
		if err := d.ss.undo(ctx, r, d.conn); err != nil {
			return s.fail(err)
		}
		s.forget(r.ID)
		return nil
	}
	ss, err := s.any(ctx)
	if err != nil {
		return err
	}
	if doubted {
		err = ss.settle(ctx, r, d.ss)
	} else {
		err = ss.undo(ctx, r, 0)
	}
	return s.fail(err)
}

// settle makes sure that nothing of a request stands or can still come of a session
// that has ended.
func (ss *session) settle(ctx context.Context, r driver.Request, old *session) error {
	if err := ss.invalidateSession(ctx, old); err != nil {
		return ss.s.fail(err)
	}
	if err := ss.undo(ctx, r, 0); err != nil {
		return ss.s.fail(err)
	}
	ss.s.forget(r.ID)
	return nil
}

// invalidateSession deletes the guard of a session that has ended here: without it no create
// that the session still has on its way succeeds.
//
// A server reports "expired" when it begins to end the session, and one server alone does.
// A leader that was paused and deposed reports it of every session when it resumes. A leader
// that crashes before its majority has agreed never ends the session. In both cases the next
// leader gives the session its whole timeout again, and its nodes stand.
func (ss *session) invalidateSession(ctx context.Context, old *session) error {
	if old.invalidated.Load() {
		return nil
	}
	path, _ := old.guard()
	del := zk.Delete(path, -1)
	if err := ss.zk.Do(ctx, del); err != nil {
		return err
	}
	if del.Err != nil && !errors.Is(del.Err, zk.ErrNoNode) {
		return del.Err
	}
	old.invalidated.Store(true)
	return nil
}

func (ss *session) undo(ctx context.Context, r driver.Request, conn int) error {
	s := ss.s
	if conn == 0 {
		if err := ss.moveGuard(ctx); err != nil {
			return err
		}
		conn = ss.zk.Conn()
	}
	for _, dir := range s.recipe.dirs(s.dir(r.Name)) {
		found, err := ss.find(ctx, r.ID, dir, conn)
		if err != nil {
			return err
		}
		var calls []*zk.Call
		for _, path := range found {
			ss.dropping(path)
			calls = append(calls, zk.Delete(path, -1))
		}
		if len(calls) > 0 {
			if err := ss.zk.Do(ctx, calls...); err != nil {
				return err
			}
		}
		for _, c := range calls {
			if c.Err != nil && !errors.Is(c.Err, zk.ErrNoNode) {
				return c.Err
			}
		}
	}
	for _, open := range s.open() {
		open.mu.Lock()
		if g := open.grants[r.ID]; g != nil {
			g.taken = driver.CauseGone // it was undone: nobody needs to be told
			open.forgetLocked(g)
		}
		open.mu.Unlock()
	}
	return nil
}

// dropping marks a grant whose node we are about to delete ourselves.
func (ss *session) dropping(path string) {
	for _, open := range ss.s.open() {
		open.mu.Lock()
		if g := open.ours[path]; g != nil {
			g.ending = true
		}
		open.mu.Unlock()
	}
}
