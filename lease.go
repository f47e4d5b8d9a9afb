package holdfast

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// lease is one request to the store and, once granted, what the store keeps for it.
// It is the [driver.Requester] of that request.
type lease struct {
	l   *Locker
	req driver.Request
	// queue is the local queue whose head requested it, nil for a request that does
	// not wait.
	queue *queue
	// acquiring is the context of a request that does not wait.
	acquiring requestContext
	// releasing is the context of the first attempt to release it.
	releasing requestContext
	// valid is standing while the phase is held or lingering, and nil otherwise. Readers
	// load it without the mutex.
	valid atomic.Pointer[standing]

	// The rest is guarded by the Locker's mutex.

	state leaseState
	// standing is the grant as it was granted or renewed last. It does not change
	// once the lease is being released, or has ended.
	standing *standing
	// holder is the present holder.
	holder *holder
	// loss is why the lease was lost, nil if it was not.
	loss *LostError
	// timer ends lingering.
	timer *time.Timer
	// due is when the schedule handles the lease next. index is its place in the
	// schedule's heap, counted from 1; 0 means that it is not there.
	due   time.Duration // since the making of the Locker
	index int32
	// answered: the store has answered that the name is held. It is not guarded.
	answered atomic.Bool
	// prev and next link the leases that Close ends.
	prev, next *lease

	// The first standing and the first holder are stored in the lease, which saves allocations.
	firstStanding standing
	firstHolder   holder
}

// holder is one caller's time with a lease: from the grant, or the handoff, to the
// last Unlock. One or, by reentrancy, several Locks belong to it. Everything but
// locks is constant once the lease is held.
type holder struct {
	lease *lease
	set   *settings
	ctx   context.Context
	token uint64
	// locks links the open Locks, by Lock.next. Guarded by the Locker's mutex; after a
	// loss it no longer changes.
	locks *Lock
	first Lock
}

// standing is a grant, with SentAt and TTL as of the last renewal. It is immutable
// once the lease is held.
type standing struct {
	grant driver.Grant
	valid time.Duration // after grant.SentAt, or driver.Forever
}

// left returns for how long the holder can still rely on the grant.
func (s *standing) left() time.Duration {
	switch {
	case s == nil:
		return 0
	case s.valid == driver.Forever:
		return driver.Forever
	}
	age, _ := s.grant.SentAt.Elapsed()
	return s.valid - age
}

func (l *Locker) newLease(ctx context.Context, name string, s *settings) *lease {
	x := &lease{l: l}
	x.holder, x.standing = &x.firstHolder, &x.firstStanding
	x.holder.lease, x.holder.set, x.holder.ctx = x, s, ctx
	x.req = driver.Request{ID: l.newID(), Name: name, Limit: s.limit, TTL: s.ttl, Tokens: 1, From: x}
	return x
}

// Owner returns the owner that an inspection shows. Its reason is that of the waiter at the
// head of the local queue, if the request waits there.
func (x *lease) Owner() driver.Owner {
	l := x.l
	reason := x.firstHolder.set.reason
	if q := x.queue; q != nil {
		l.mu.Lock()
		reason = x.holder.set.reason
		if q.pending == x && q.head != nil {
			reason = q.head.set.reason
		}
		l.mu.Unlock()
	}
	return driver.Owner{ID: x.req.ID, Host: l.cfg.host, PID: pid, Instance: l.cfg.instance, Reason: reason}
}

// Queued records that the store has answered.
func (x *lease) Queued(holders []driver.Holder) {
	x.answered.Store(true)
	if x.queue != nil {
		x.l.noteQueued(x, holders)
	}
}

// Lost receives the store's notification that the grant has ended. It ends the lease for its
// present holder.
func (x *lease) Lost(cause driver.Cause, err error) {
	x.l.apply(x, &event{kind: revoke, cause: cause, err: err})
}

// outcome contains the effects of a step and everything that they need. Once the mutex has been
// released the lease may change again.
type outcome struct {
	effects
	lease  *lease
	holder *holder
	since  time.Duration // of the holder
	lock   *Lock
	loss   *LostError
	err    error
	age    time.Duration // of the validity, as in facts
	// cancel ends the queue's request at the store, which no waiter needs now.
	cancel context.CancelCauseFunc
}

// apply applies an event to a lease, and carries out the effects.
func (l *Locker) apply(x *lease, e *event) {
	var o outcome
	l.mu.Lock()
	l.step(x, e, &o)
	l.mu.Unlock()
	_ = l.perform(&o)
}

// step applies an event to a lease, and writes the whole of o. The Locker's mutex is
// held.
func (l *Locker) step(x *lease, e *event, o *outcome) {
	if e.kind == granted || e.kind == renewed {
		g := &x.standing.grant
		e.sent, e.ttl, e.valid = l.sinceStart(g.SentAt.Time()), g.TTL, x.holder.set.validFor(g.TTL)
		if e.kind == granted {
			e.spare, e.within = l.handoffLimits(g)
			e.provisional = g.Provisional
		}
	}
	if e.kind == joined && x.holder != e.lock.holder {
		*o = outcome{effects: effects{do: endOne}, lock: e.lock}
		return
	}
	var f facts
	next := l.observe(x, e, &f)
	o.lease, o.holder, o.since, o.lock, o.err, o.age, o.cancel = x, x.holder, x.state.since, e.lock, e.err, f.age, nil
	o.effects = x.state.apply(e, &f)

	if o.cause != "" {
		x.loss = &LostError{Name: x.req.Name, Store: l.where, Token: x.holder.token, Cause: o.cause, Err: e.err}
	}
	o.loss = x.loss
	switch {
	case e.kind == granted:
		x.holder.token = x.standing.grant.Token
		o.since = x.state.since
		if x.state.open > 0 {
			x.holder.locks = e.lock
		}
	case e.kind == opened || e.kind == joined:
		if o.do&endOne == 0 {
			e.lock.next, x.holder.locks = x.holder.locks, e.lock
		}
	case e.kind == unlocked && x.loss == nil:
		x.holder.remove(e.lock)
	}
	if next != nil && e.kind != left {
		l.localContention.found(x.req.Name, reserveAgain)
	}
	if o.do&handOff != 0 {
		o.cancel = l.handOff(x, next)
	}
	if o.do&linger != 0 {
		l.background.begin()
		x.timer = time.AfterFunc(o.keep, func() { l.apply(x, &event{kind: lingered}) })
	}
	l.index(x, e, &f, o.do)
}

// observe collects the facts for an event, and finds the waiter that can get the lease.
func (l *Locker) observe(x *lease, e *event, f *facts) (next *waiter) {
	switch e.kind {
	case granted, unlocked, left, dropped, checked, ticked, resumed, renewed, renewalFailed, lingered:
	case limitReached:
		f.used = x.holder == e.lock.holder && e.lock.ended.Load() == nil // it may drain
		return nil
	default:
		return nil
	}
	g := &x.standing.grant
	if e.kind == unlocked || e.kind == left || e.kind == dropped {
		next = l.nextHolder(x)
	}
	switch {
	case e.kind == left && next == nil && x.state.keep == 0:
		f.age = e.age // a few microseconds old, which does not matter to a release
	case x.state.forever:
		f.now = l.now()
	default:
		f.age, f.slept = g.SentAt.Elapsed()
		f.now = l.sinceStart(g.SentAt.Time()) + f.age - f.slept
	}
	switch e.kind {
	case granted:
		f.used = e.lock != nil
	case ticked, resumed, renewed, renewalFailed:
		f.used = x.holder.used(f.now)
	case unlocked, left, dropped:
		f.storeKeeps = l.guarantees.Load().Linger
		if next != nil {
			f.next, e.valid = true, next.set.validFor(g.TTL)
		}
	}
	return next
}

// used reports whether a Lock needs the lease: its context lives, or it drains.
func (h *holder) used(now time.Duration) (used bool) {
	for k := h.locks; k != nil; k = k.next {
		used = k.ctx.Context.Err() == nil || k.drains(now) || used
	}
	return used
}

// remove takes k out of the open Locks.
func (h *holder) remove(k *Lock) {
	for at := &h.locks; *at != nil; at = &(*at).next {
		if *at == k {
			*at, k.next = k.next, nil
			return
		}
	}
}

// validFor returns for how long after its send the holder can rely on a lease of that TTL.
func (s *settings) validFor(ttl time.Duration) time.Duration {
	switch {
	case ttl == driver.Forever:
		return driver.Forever
	case s.hasMargin:
		return ttl - s.margin
	}
	return ttl - ttl/10
}

// index updates what follows from the state of a lease: the list of the leases that Close ends,
// the validity for readers, and the schedule. The Locker's mutex is held.
func (l *Locker) index(x *lease, e *event, f *facts, do effect) {
	alive := x.state.alive()
	if ends := alive || x.state.phase == lost; ends != l.leases.has(x) {
		if ends {
			l.leases.push(x)
		} else {
			l.leases.remove(x)
		}
	}
	if !alive {
		if x.valid.Load() != nil {
			x.valid.Store(nil)
			l.schedule.remove(x)
		}
		return
	}
	switch {
	case e.kind == granted || e.kind == renewed: // the standing is new
		x.standing.valid = x.state.valid
		x.valid.Store(x.standing)
	case x.standing.valid != x.state.valid: // a handoff to a holder with another margin
		x.standing = &standing{x.standing.grant, x.state.valid}
		x.valid.Store(x.standing)
	}
	if x.state.forever {
		return
	}
	switch e.kind {
	case unlocked, left, dropped:
		if do&(handOff|linger) == 0 {
			return
		}
	case opened, joined:
		if !x.state.renewing && x.state.renewAt < x.due {
			l.schedule.put(x, x.state.renewAt)
			l.arm()
		}
		return
	case granted, ticked, resumed, renewed, renewalFailed:
	default:
		return
	}
	l.schedule.put(x, x.state.due(f))
	l.arm()
}

// perform carries out the effects of a step, in the order in which they are declared. The
// schedule carries out renew, for many leases at once. The error is that of a release.
func (l *Locker) perform(o *outcome) error {
	if o.do == 0 && o.cancel == nil {
		return nil
	}
	if o.do&endAll != 0 {
		for k := o.holder.locks; k != nil; k = k.next {
			k.finish(o.loss)
		}
	}
	if o.do&endOne != 0 {
		if o.loss != nil { // else a nil *LostError would become a cause
			o.lock.finish(o.loss)
		} else {
			o.lock.finish(ErrReleased)
		}
	}
	if o.do&endLimit != 0 {
		o.lock.finish(ErrHoldLimit)
		o.holder.reportLater(EventHoldLimit, nil, o.since)
	}
	if o.do&reportLoss != 0 {
		o.holder.reportLater(EventLost, o.loss, o.since)
	}
	if o.do&stopLinger != 0 {
		o.lease.timer.Stop()
		defer l.background.end()
	}
	if o.do&reportRenewal != 0 {
		if o.err != nil {
			o.holder.reportLater(EventRenewFailed, o.err, o.since)
		} else {
			o.holder.reportLater(EventRenewed, nil, o.since)
		}
	}
	if o.cancel != nil {
		o.cancel(errAbandoned)
	}
	if o.do&reportRelease != 0 {
		o.holder.reportReleased(o.since)
	}
	var err error
	if o.do&release != 0 {
		err = l.release(o)
	}
	if o.do&reportUnconfirmed != 0 {
		o.holder.reportLater(EventUnconfirmed, o.err, o.since)
	}
	if o.do&releaseLater != 0 {
		o.holder.releaseLater(o.keep, o.since, o.loss == nil)
	}
	if o.do&undo != 0 {
		l.undoLater(o.lease)
	}
	return err
}

// leaseList links the leases that Close ends.
type leaseList struct{ head *lease }

func (ll *leaseList) has(x *lease) bool { return x.prev != nil || ll.head == x }

func (ll *leaseList) push(x *lease) {
	x.next = ll.head
	if ll.head != nil {
		ll.head.prev = x
	}
	ll.head = x
}

func (ll *leaseList) remove(x *lease) {
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		ll.head = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

func (ll *leaseList) all() []*lease {
	var all []*lease
	for x := ll.head; x != nil; x = x.next {
		all = append(all, x)
	}
	return all
}
