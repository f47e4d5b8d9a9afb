package zkstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

const (
	// watchDelay is how old a grant becomes before its own node is watched, and how
	// often grants are looked at: a lock that is held for less costs no watch.
	watchDelay = 100 * time.Millisecond
	// tendPatience bounds one round of what tend asks.
	tendPatience = 2 * time.Second
	// leanDelay is how often a place is looked at that others lean on: nobody
	// watches it.
	leanDelay = time.Second
)

// tend looks after the grants that stand: it watches their nodes, for a request to
// end or a deletion, and deletes those that nobody has renewed. It looks as well whether
// the places stand that others of ours wait for.
func (ss *session) tend() {
	t := time.NewTimer(watchDelay)
	defer t.Stop()
	looked := time.Now()
	for {
		ss.mu.Lock()
		ss.tending = len(ss.grants) > 0
		tending, leaning := ss.tending, ss.leaning
		ss.mu.Unlock()
		switch {
		case tending:
			t.Reset(min(watchDelay, max(ss.ttl/20, 5*time.Millisecond)))
		case leaning:
			t.Reset(leanDelay)
		}
		select {
		case <-ss.rouse:
		case <-t.C:
		case <-ss.over:
			return
		case <-ss.s.end.Done():
			return
		}
		ctx, cancel := context.WithTimeout(ss.s.end, tendPatience)
		ss.expire(ctx)
		ss.watchOwn(ctx)
		if leaning && time.Since(looked) >= leanDelay {
			looked = time.Now()
			ss.lookAtPlaces(ctx)
		}
		cancel()
	}
}

// lookAtPlaces reads the nodes of places that others of ours lean on. Where one is gone,
// it and they look again.
func (ss *session) lookAtPlaces(ctx context.Context) {
	if ss.zk.Conn() == 0 {
		return
	}
	ss.mu.Lock()
	leant := map[string]bool{}
	for _, places := range ss.places {
		for p := range places {
			for _, path := range p.leans {
				leant[path] = true
			}
		}
	}
	var due []*place
	for _, places := range ss.places {
		for p := range places {
			if leant[p.path] {
				due = append(due, p)
			}
		}
	}
	ss.leaning = len(due) > 0
	ss.mu.Unlock()
	for some := range slices.Chunk(due, batch) {
		calls := make([]*zk.Call, len(some))
		for i, p := range some {
			calls[i] = zk.Get(p.path, false)
		}
		if ss.zk.Do(ctx, calls...) != nil {
			return
		}
		ss.mu.Lock()
		for i, c := range calls {
			if errors.Is(c.Err, zk.ErrNoNode) {
				some[i].look(nil)
				ss.goneLocked(some[i].dir, some[i].path, nil)
			}
		}
		ss.mu.Unlock()
	}
}

// expire deletes what nobody has renewed in time. What cannot be deleted now is
// tried again.
func (ss *session) expire(ctx context.Context) {
	ss.mu.Lock()
	var due []*grant
	for _, g := range ss.grants {
		if passed, _ := g.sent.Elapsed(); passed >= g.ttl && !g.busy {
			due = append(due, g)
		}
	}
	ss.mu.Unlock()
	for _, g := range due {
		ss.mu.Lock()
		tell := g.taken == ""
		if tell {
			g.taken = driver.Expired
		}
		ss.mu.Unlock()
		if tell {
			g.from.Lost(driver.Expired, nil)
		}
		if ss.zk.Conn() == 0 {
			continue
		}
		_, _ = g.remove(ctx) // it is tried again
	}
}

// watchOwn reads the nodes of grants that are not watched, with a watch. One that is lost
// and not released yet still keeps those of our own waiting who lean on it.
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
	for some := range slices.Chunk(due, 256) {
		calls := make([]*zk.Call, len(some))
		for i, g := range some {
			calls[i] = zk.Get(g.path, true)
		}
		if ss.zk.Do(ctx, calls...) != nil {
			ss.mu.Lock()
			for _, g := range due { // and none that was not asked about at all
				if g.watched == conn {
					g.watched = 0
				}
			}
			ss.mu.Unlock()
			return
		}
		for i, c := range calls {
			ss.seen(some[i], c)
		}
	}
}

// seen takes what was read of a grant's own node.
func (ss *session) seen(g *grant, c *zk.Call) {
	var told *grant
	var why error
	ss.mu.Lock()
	switch {
	case g.ending:
	case errors.Is(c.Err, zk.ErrNoNode):
		told, why = ss.loseLocked(g, driver.Taken), errors.New("its node was deleted")
	case c.Err != nil:
		g.watched = 0
	case g.taken != "":
	case string(c.Data) == revoke:
		// Asked to end: the node stands until the release, or until whoever asked
		// deletes it.
		g.taken = driver.Taken
		told, why = g, errors.New("it was asked to end")
	}
	ss.mu.Unlock()
	if told != nil {
		told.from.Lost(driver.Taken, why)
	}
}
