package holdfast

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// keepFor returns for how long the Locker may keep x after its last Unlock: not while a request of this process
// waits for the name, or for a connection that x may have. The Locker's mutex is held.
func (l *Locker) keepFor(x *lease) time.Duration {
	q := l.queues[x.req.Name]
	if l.closed || l.delayed > 0 || q != nil && q.head != nil || l.kept[x.req.Name] != nil {
		return 0
	}
	return x.holder.set.sticky
}

// keep starts the time for which x is kept, and the watch of its name if x is kept for the first time. The
// Locker's mutex is held.
func (l *Locker) keep(x *lease, d time.Duration) {
	if x.timer == nil {
		x.timer = time.AfterFunc(d, func() { _, _ = l.apply(x, &event{kind: recalled}) })
	} else {
		x.timer.Reset(d)
	}
	if x.endWatch == nil {
		var ctx context.Context
		ctx, x.endWatch = context.WithCancel(l.ctx)
		l.background.run(func() { l.watchKept(ctx, x, d) })
	}
}

// watchKept recalls x when a request of another Locker waits for the name, or when the watch has failed. ctx ends
// with x.
func (l *Locker) watchKept(ctx context.Context, x *lease, d time.Duration) {
	recall := func() { _, _ = l.apply(x, &event{kind: recalled}) }
	err := l.awaitWaiter(ctx, x.req.Name, d, func(w driver.Waiter) bool {
		if strings.HasPrefix(w.ID, l.idPrefix) { // mutation: kept-watch
			return false
		}
		recall()
		return true
	})
	if err != nil && ctx.Err() == nil {
		recall()
	}
}

// indexKept updates the leases that requests can take. The Locker's mutex is held.
func (l *Locker) indexKept(x *lease) {
	name := x.req.Name
	if x.kept = !x.kept; x.kept {
		if l.kept == nil {
			l.kept = map[string]*lease{}
		}
		l.kept[name] = x
	} else {
		delete(l.kept, name)
	}
	l.keptCount.Store(int32(len(l.kept)))
}

// takeKept gives the kept lease of the name, if there is one, to a request. It returns nil if there
// is none that the request can have. Then o has the release of a lease that does not fit. The Locker's mutex is
// held.
func (l *Locker) takeKept(ctx context.Context, name string, s *settings, o *outcome) *holder {
	x := l.kept[name]
	if x == nil || l.closed {
		return nil
	}
	e := event{kind: recalled}
	if s.limit == x.req.Limit && s.ttl == x.req.TTL {
		e = event{kind: taken, valid: s.validFor(x.standing.grant.TTL)}
	}
	l.step(x, &e, o)
	if o.do&take == 0 {
		return nil
	}
	x.timer.Stop() // it may have fired: then the next last Unlock releases the lease
	l.background.end()
	l.leaseCount++
	x.number = l.leaseCount // Close ends inner locks first
	x.holder = &holder{lease: x, set: s, ctx: ctx, token: tokenOf(&x.standing.grant, x.state.handoffs)}
	return x.holder
}

// take returns the Lock of a request that can have the kept lease of the name. It returns neither a Lock nor an
// error if the request has to go to the store.
func (a *acquisition) take() (*Lock, error) {
	l := a.l
	var o outcome
	l.mu.Lock()
	h := l.takeKept(a.ctx, a.name, a.set, &o)
	l.mu.Unlock()
	switch {
	case h != nil:
		_ = l.perform(&o)
		return a.open(h)
	case o.do != 0:
		a.await(l.performLater(o))
	}
	return nil, nil
}

// await waits for the release of a kept lease that does not fit the request, but not for longer than the request may.
func (a *acquisition) await(released <-chan struct{}) {
	late := time.NewTimer(a.requestTimeout())
	defer late.Stop()
	select {
	case <-released:
	case <-a.waiting.Done():
	case <-late.C:
	}
}

// performLater carries out the effects of an event in the background, because a release lasts as long as the store takes.
func (l *Locker) performLater(o outcome) (done <-chan struct{}) {
	ended := make(chan struct{})
	l.background.run(func() {
		defer close(ended)
		_ = l.perform(&o)
	})
	return ended
}

// open returns the Lock of a holder that has taken a kept lease. It gives the lease back if the caller has no use
// for it.
func (a *acquisition) open(h *holder) (*Lock, error) {
	if a.waiting.Err() != nil {
		_, _ = a.l.apply(h.lease, &event{kind: dropped})
		return nil, a.fail(nil, contextError(a.waiting))
	}
	k := newLock(h, &h.first, a.ctx, a.set)
	k.open(opened, a.set)
	return k, nil
}

// dropKept ends the kept lease of a name for which the store has granted a request: it has ended at the store,
// and the Locker has not heard of it. The Locker's mutex is held.
func (l *Locker) dropKept(name string) {
	if x := l.kept[name]; x != nil {
		var o outcome
		l.step(x, &event{kind: revoke, cause: CauseGone}, &o)
		l.performLater(o)
	}
}

// recallKept releases all kept leases, in the background.
func (l *Locker) recallKept() {
	if l.keptCount.Load() == 0 {
		return
	}
	l.mu.Lock()
	leases := slices.Collect(maps.Values(l.kept))
	l.mu.Unlock()
	for _, x := range leases {
		l.background.run(func() { _, _ = l.apply(x, &event{kind: recalled}) })
	}
}

// checkSticky returns an error if the Locker cannot keep leases at a store.
func (l *Locker) checkSticky(name string, g *driver.Guarantees) error {
	n, _ := l.maxHandoffs(g)
	switch {
	case !g.Reserves:
		return l.unsupported(name, fmt.Sprintf("Sticky: the %s store reserves no tokens for the next locks of a grant", g.Kind))
	case g.Visible != driver.VisibleAll || g.Wake == driver.WakePoll: // a waiter that polls has no queue entry
		return l.unsupported(name, fmt.Sprintf("Sticky: the %s store does not show waiters, so nothing would recall a grant", g.Kind))
	case n == 0:
		return l.unsupported(name, "Sticky: LocalHandoff(0) allows no handoff to the next lock")
	}
	return nil
}
