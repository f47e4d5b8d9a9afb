package zkstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/gather"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

const (
	// watchDelay is the age at which a grant's own node is watched, and the interval at which
	// grants are checked. A shorter lock costs no watch.
	watchDelay = 100 * time.Millisecond
	// maintainTimeout limits the requests of one round of maintain.
	maintainTimeout = 2 * time.Second
	// localCheckInterval is how often maintain reads a queue entry that later entries of
	// this client wait behind: no watch reports its deletion.
	localCheckInterval = time.Second
)

// maintain watches the nodes of this client's grants, for a deletion or a request to end. It
// deletes the nodes of grants that were not renewed in time. It also checks that the queue entries
// exist that later entries of this client wait behind. After each reconnection it deletes the
// session's nodes that belong to no request, and reads the list of servers.
func (ss *session) maintain() {
	t := time.NewTimer(watchDelay)
	defer t.Stop()
	lastLocalCheck := time.Now()
	checked := 1 // the connection on which the session's own nodes were last listed
	for {
		ss.mu.Lock()
		ss.maintaining = len(ss.grants) > 0
		maintaining, checkingLocal := ss.maintaining, ss.checkingLocal
		ss.mu.Unlock()
		switch {
		case maintaining:
			t.Reset(min(watchDelay, max(ss.ttl/20, 5*time.Millisecond)))
		case checkingLocal || ss.zk.Conn() > checked || ss.relist.Load():
			t.Reset(localCheckInterval)
		}
		select {
		case <-ss.wakeUp:
		case <-t.C:
		case <-ss.over:
			return
		case <-ss.s.calls.Ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(ss.s.calls.Ctx, maintainTimeout)
		ss.expire(ctx)
		ss.watchOwn(ctx)
		if conn := ss.zk.Conn(); conn > checked && ss.removeUnknown(ctx) == nil {
			checked = conn
		}
		if ss.zk.Conn() != 0 && ss.relist.Swap(false) {
			ss.s.calls.Tasks.Go(ss.followServers)
		}
		if checkingLocal && time.Since(lastLocalCheck) >= localCheckInterval {
			lastLocalCheck = time.Now()
			ss.checkLocalPredecessors(ctx)
		}
		cancel()
	}
}

// removeUnknown deletes the nodes of the session that belong to no request of this client. A copy
// from which the ensemble was restored has nodes of locks that were released since. If the session
// survives the restore, nothing else ends them.
func (ss *session) removeUnknown(ctx context.Context) error {
	list := zk.Ephemerals()
	if err := ss.zk.Do(ctx, list); err != nil {
		return err
	}
	if list.Err != nil {
		return nil // a server before 3.6
	}
	// Collect the requests after the list, and the grants after the requests. A node that becomes a
	// grant meanwhile is then in one of the two.
	s := ss.s
	requests := map[string]struct{}{}
	s.mu.Lock()
	for id := range s.acquiring {
		requests[protected(id)] = struct{}{}
	}
	for id := range s.unanswered {
		requests[protected(id)] = struct{}{}
	}
	s.mu.Unlock()
	known := func(path string) bool {
		name := path[strings.LastIndexByte(path, '/')+1:]
		_, requested := requests[name[:min(len(name), prefixLen)]]
		return requested || strings.HasPrefix(path, s.baseNode()+"/") || ss.ours[path] != nil
	}
	ss.mu.Lock()
	unknown := slices.DeleteFunc(list.Names, known)
	ss.mu.Unlock()
	return ss.sendAll(ctx, len(unknown), func(i int) *zk.Call { return zk.Delete(unknown[i], -1) }, func(int, *zk.Call) {})
}

// checkLocalPredecessors reads the nodes of queue entries that later entries of this client wait
// behind. If a node is gone, its entry and the entries behind it read the queue again.
func (ss *session) checkLocalPredecessors(ctx context.Context) {
	if ss.zk.Conn() == 0 {
		return
	}
	ss.mu.Lock()
	awaited := map[string]bool{}
	for _, entries := range ss.entries {
		for p := range entries {
			for _, path := range p.localPredecessors {
				awaited[path] = true
			}
		}
	}
	var due []*entry
	for _, entries := range ss.entries {
		for p := range entries {
			if awaited[p.path] {
				due = append(due, p)
			}
		}
	}
	ss.checkingLocal = len(due) > 0
	ss.mu.Unlock()
	_ = ss.sendAll(ctx, len(due), func(i int) *zk.Call { return zk.Get(due[i].path, false) }, func(i int, c *zk.Call) {
		if errors.Is(c.Err, zk.ErrNoNode) {
			ss.mu.Lock()
			due[i].wake(nil)
			ss.wakeWaitersLocked(due[i].dir, due[i].path, nil)
			ss.mu.Unlock()
		}
	})
}

// inFlight is the number of pieces that sendAll sends before it waits for answers. With it, thousands
// of requests take a few round trips, and a heartbeat does not wait for many of them.
const inFlight = 8

// sendAll sends n requests in pieces, and calls handle with their answers in order. It stops at the
// first request without an answer.
func (ss *session) sendAll(ctx context.Context, n int, request func(i int) *zk.Call, handle func(i int, c *zk.Call)) error {
	var sent []*zk.Call
	handled := 0
	for handled < n {
		if len(sent) < n && len(sent)-handled < inFlight*batch {
			first := len(sent)
			for i := first; i < min(first+batch, n); i++ {
				sent = append(sent, request(i))
			}
			if err := ss.zk.Send(ctx, sent[first:]...); err != nil {
				return err
			}
			continue
		}
		next := min(handled+batch, n)
		select {
		case <-sent[next-1].Done():
		case <-ctx.Done():
			return &zk.LostError{Err: ctx.Err()}
		}
		for ; handled < next; handled++ {
			c := sent[handled]
			if _, lost := c.Err.(*zk.LostError); lost {
				return c.Err
			}
			handle(handled, c)
		}
	}
	return nil
}

// expire deletes the nodes of grants that were not renewed in time. The next round retries
// deletions that fail now.
func (ss *session) expire(ctx context.Context) {
	ss.mu.Lock()
	var due []*grant
	for _, g := range ss.grants {
		if passed, _ := g.sent.Elapsed(); passed >= g.ttl && !g.busy {
			due = append(due, g)
			ss.loseLocked(g, driver.CauseExpired, nil)
		}
	}
	ss.unlock()
	if ss.zk.Conn() == 0 {
		return
	}
	gather.Each(len(due), batch, func(i int) { _, _ = due[i].remove(ctx) }) // the next round retries it
}

// watchOwn reads the nodes of grants that are not watched, with a watch. A grant that was lost
// and is not released yet still blocks the queue entries of this client behind it.
func (ss *session) watchOwn(ctx context.Context) {
	conn := ss.zk.Conn()
	if conn == 0 {
		return
	}
	ss.mu.Lock()
	var due []*grant
	for _, g := range ss.grants {
		if g.watched != conn && !g.ending && time.Since(g.made) >= watchDelay {
			g.watched = conn
			due = append(due, g)
		}
	}
	ss.mu.Unlock()
	handled := 0
	err := ss.sendAll(ctx, len(due), func(i int) *zk.Call { return zk.Get(due[i].path, true) }, func(i int, c *zk.Call) {
		ss.ownNodeRead(due[i], c)
		handled = i + 1
	})
	if err == nil {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, g := range due[handled:] { // the others are watched
		if g.watched == conn {
			g.watched = 0
		}
	}
}

// ownNodeRead handles the answer to the read of a grant's own node.
func (ss *session) ownNodeRead(g *grant, c *zk.Call) {
	ss.mu.Lock()
	defer ss.unlock()
	switch {
	case g.ending:
	case errors.Is(c.Err, zk.ErrNoNode):
		ss.forgetLocked(g)
		ss.loseLocked(g, driver.CauseTaken, errNodeDeleted)
	case c.Err != nil:
		g.watched = 0
	case string(c.Data) == revoke:
		// The node exists until the release, or until the client that requested the end
		// deletes it.
		ss.loseLocked(g, driver.CauseTaken, errors.New("it was requested to end"))
	}
}
