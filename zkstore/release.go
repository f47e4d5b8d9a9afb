package zkstore

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// grantOf returns the grant of a caller, nil if it has ended.
func (s *store) grantOf(dg driver.Grant) *grant {
	if g, ok := dg.Handle.(*grant); ok && g.matches(dg) {
		return g
	}
	for _, ss := range s.liveSessions() {
		ss.mu.Lock()
		g := ss.grants[dg.ID]
		ss.mu.Unlock()
		if g != nil && g.matches(dg) {
			return g
		}
	}
	return nil
}

// matches reports whether g has not ended and is the caller's grant dg.
func (g *grant) matches(dg driver.Grant) bool {
	g.ss.mu.Lock()
	defer g.ss.mu.Unlock()
	return g.ss.grants[dg.ID] == g && g.Token == dg.Token && g.Name == dg.Name
}

// Release ends a grant. The node's name is used once, so that its deletion proves that it
// existed. If this client waits for the name as well, the same round trip reads the list
// that shows the next grant.
func (s *store) Release(ctx context.Context, dg driver.Grant, _ time.Duration) error {
	if s.calls.Stopped() {
		return errClosed()
	}
	g := s.grantOf(dg)
	if g == nil {
		return s.releaseEnded(ctx, dg)
	}
	lost, err := g.remove(ctx)
	switch {
	case err != nil && s.calls.Stopped():
		return errClosed()
	case err != nil && g.ss.zk.Ended() != nil:
		return s.releaseEnded(ctx, dg)
	case err != nil:
		return s.fail(err)
	case lost:
		return driver.NotHeld(dg.Name, dg.Token)
	}
	return nil
}

// releaseEnded releases a grant that has ended in this process. If a server has reported the session as expired, the
// node may still exist. If a server has refused the session, the node exists.
func (s *store) releaseEnded(ctx context.Context, dg driver.Grant) error {
	g, ok := dg.Handle.(*grant)
	if !ok || g.ss.s != s || g.ss.zk.Ended() == nil {
		return driver.NotHeld(dg.Name, dg.Token)
	}
	ss, err := s.anySession(ctx)
	if err != nil {
		return err
	}
	if err := ss.undoAfterEnd(ctx, driver.Request{ID: dg.ID, Name: dg.Name}, g.ss); err != nil {
		return err
	}
	return driver.NotHeld(dg.Name, dg.Token)
}

// remove deletes the node. lost reports that the grant had been lost before.
func (g *grant) remove(ctx context.Context) (lost bool, err error) {
	ss := g.ss
	ss.mu.Lock()
	g.ending, g.busy = true, true
	next := g.handOffLocked()
	waiting := len(ss.entries[g.dir]) > 0
	ss.mu.Unlock()
	del := zk.Delete(g.path, -1)
	calls := []*zk.Call{del}
	var list, nextNode *zk.Call
	switch {
	case next != nil:
		nextNode = zk.Get(next.path, false)
		calls = append(calls, nextNode)
	case waiting:
		list = zk.Children(g.dir)
		calls = append(calls, list)
	}
	err = ss.zk.Do(ctx, calls...)
	if err == nil && del.Err != nil && !errors.Is(del.Err, zk.ErrNoNode) {
		err = del.Err
	}
	if nextNode != nil && err == nil && errors.Is(nextNode.Err, zk.ErrNoNode) {
		next.revokeHandoff()
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	g.busy = false
	if err != nil {
		return false, err
	}
	lost = g.cause != "" || del.Err != nil
	ss.forgetLocked(g)
	if list != nil && list.Err == nil {
		ss.wakeWaitersLocked(g.dir, g.path, list.Names)
	}
	return lost, nil
}

// handOffLocked makes the next entry in the queue a grant, if it belongs to this client, before
// the release is confirmed. An exclusive grant is the first in the queue. An exclusive entry
// that waits for nothing else is the second, and every entry behind it waits for both. It
// returns that entry, nil if there is none.
func (g *grant) handOffLocked() *entry {
	if g.Limit != driver.Exclusive {
		return nil
	}
	for p := range g.ss.entries[g.dir] {
		if p.node.limit == driver.Exclusive && len(p.subscribed) == 0 && len(p.localPredecessors) == 1 && p.localPredecessors[0] == g.path {
			p.handoff = true
			p.wake(nil)
			return p
		}
	}
	return nil
}

// revokeHandoff ends the grant of an entry after a handoff, because the entry's node was deleted.
// Unless the grant was released meanwhile, another client has deleted the node.
func (p *entry) revokeHandoff() {
	ss := p.ss
	ss.mu.Lock()
	defer ss.unlock()
	p.deleted = true // the entry may not be a grant yet
	if g := ss.ours[p.path]; g != nil && !g.ending {
		ss.forgetLocked(g)
		ss.loseLocked(g, driver.CauseTaken, errNodeDeleted)
	}
}

// Renew sends one request to the leader for all the grants of a session. The validity runs from the
// send of that request, as far as the session's proof reaches.
func (s *store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	found := make([]*grant, len(grants))
	heartbeats := map[*session]*heartbeat{}
	for i, dg := range grants {
		switch g := s.grantOf(dg); {
		case s.calls.Stopped():
			answers[i].Err = errClosed()
		case g == nil:
			answers[i] = driver.Renewal{Cause: driver.CauseGone, Err: driver.NotHeld(dg.Name, dg.Token)}
		default:
			found[i] = g
			heartbeats[g.ss] = &heartbeat{}
		}
	}
	var syncing sync.WaitGroup
	for ss, h := range heartbeats {
		syncing.Go(func() { h.at, h.err = ss.sync(ctx) })
	}
	syncing.Wait()
	for i, g := range found {
		if g == nil {
			continue
		}
		if h := heartbeats[g.ss]; h.err != nil && g.ss.zk.Ended() == nil {
			answers[i].Err = s.fail(h.err)
		} else {
			answers[i] = g.renew(ctx, h.at)
		}
	}
	return answers
}

// heartbeat is the outcome of a request to the leader for one session.
type heartbeat struct {
	at  driver.Instant
	err error
}

// sync returns the instant before a request to the leader that was answered.
func (ss *session) sync(ctx context.Context) (driver.Instant, error) {
	at := driver.Now()
	c := zk.Sync("/")
	if err := ss.zk.Do(ctx, c); err != nil {
		return at, err
	}
	return at, c.Err
}

// renew extends the grant after an answer of the leader to a request that was sent at the instant at.
func (g *grant) renew(ctx context.Context, at driver.Instant) driver.Renewal {
	ss := g.ss
	sent, ttl := at, g.TTL
	if ss.zk.Proven(at) < ttl && !ss.zk.Prove(ctx, at, ttl) {
		// The session is proven for less than the TTL: renew for the proven time.
		sent, ttl = ss.zk.Proof()
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	passed, _ := g.sent.Elapsed()
	switch {
	case g.ending && g.cause == "" && ss.grants[g.ID] == g:
		return driver.Renewal{Err: driver.Errorf(driver.CodeUnavailable, "its release is not confirmed yet")}
	case ss.grants[g.ID] != g || g.cause != "":
		cause := cmp.Or(g.cause, driver.CauseGone)
		return driver.Renewal{Cause: cause, Err: driver.NotHeld(g.Grant.Name, g.Grant.Token)}
	case passed >= g.ttl:
		ss.wakeMaintain()
		return driver.Renewal{Cause: driver.CauseExpired, Err: driver.NotHeld(g.Grant.Name, g.Grant.Token)}
	case zk.Between(g.sent, sent) <= g.ttl-ttl:
		return driver.Renewal{Err: driver.Errorf(driver.CodeUnavailable, "the leader has not answered since the last renewal")}
	}
	g.sent, g.ttl = sent, ttl
	return driver.Renewal{SentAt: sent, TTL: ttl}
}

// Undo removes an entry or a grant by its ID. First it ensures that a create on a lost
// connection can no longer be executed. Then a sync makes all nodes visible.
func (s *store) Undo(ctx context.Context, r driver.Request) error {
	if s.calls.Stopped() {
		return errClosed()
	}
	s.mu.Lock()
	create, unanswered := s.unanswered[r.ID]
	s.mu.Unlock()
	if unanswered && create.ss.zk.Ended() == nil {
		if err := create.ss.undo(ctx, r, create.conn); err != nil {
			return s.fail(err)
		}
		s.forget(r.ID)
		return nil
	}
	ss, err := s.anySession(ctx)
	if err != nil {
		return err
	}
	if unanswered {
		err = ss.undoAfterEnd(ctx, r, create.ss)
	} else {
		err = ss.undo(ctx, r, 0)
	}
	return s.fail(err)
}

// undoAfterEnd ensures that no node of a request in a session that has ended exists or can still
// appear.
func (ss *session) undoAfterEnd(ctx context.Context, r driver.Request, old *session) error {
	if err := ss.invalidateSession(ctx, old); err != nil {
		return ss.s.fail(err)
	}
	if err := ss.undo(ctx, r, 0); err != nil {
		return ss.s.fail(err)
	}
	ss.s.forget(r.ID)
	return nil
}

// invalidateSession deletes the guard of a session that has ended here: without it no pending
// create of the session succeeds.
//
// A server reports "expired" when it begins to end the session, and a single server may be
// wrong. A leader that was paused and deposed reports it of every session when it resumes. A
// leader that crashes before its majority has agreed never ends the session. In both cases
// the next leader gives the session its whole timeout again, and its nodes exist.
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

// undo deletes the nodes of a request whose create was sent on the connection conn, or on any
// connection if conn is 0.
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
			ss.markEnding(path)
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
	for _, open := range s.liveSessions() {
		open.mu.Lock()
		if g := open.grants[r.ID]; g != nil {
			g.cause = driver.CauseGone // it was undone, which is no loss
			open.forgetLocked(g)
		}
		open.mu.Unlock()
	}
	return nil
}

// markEnding marks a grant whose node this client is about to delete.
func (ss *session) markEnding(path string) {
	for _, open := range ss.s.liveSessions() {
		open.mu.Lock()
		if g := open.ours[path]; g != nil {
			g.ending = true
		}
		open.mu.Unlock()
	}
}
