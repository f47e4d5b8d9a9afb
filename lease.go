package holdfast

import (
	"cmp"
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
	// valid is standing while the phase is held, lingering or kept, and nil otherwise. Readers
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
	// renewErr is the error of the last renewal, nil if it succeeded.
	renewErr error
	// timer ends lingering, or the time for which the lease is kept.
	timer *time.Timer
	// endWatch ends the watch of a lease that was kept, nil before.
	endWatch context.CancelFunc
	// due is when the schedule handles the lease next. index is its place in the
	// schedule's heap, counted from 1; 0 means that it is not there.
	due   time.Duration // since the making of the Locker
	index int32
	// kept: the lease is among those that the next request can take.
	kept bool
	// answered: the store has answered that the name is held. It is not guarded.
	answered atomic.Bool
	// place is its place among the leases that Close ends, counted from 1; 0 means that it is not there.
	place int
	// number rises from lease to lease of a Locker.
	number int64

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
		if q.lease == x && q.state.pending() && q.head != nil {
			reason = q.head.set.reason
		}
		l.mu.Unlock()
	}
	return driver.Owner{ID: x.req.ID, Host: l.cfg.host, PID: pid, Instance: l.cfg.instance, Reason: reason}
}

// Queued records that the store has answered.
func (x *lease) Queued(holders []driver.Holder) { x.waits(holders, nil) }

// Delayed implements driver.Delayer. The kept leases may have what the request waits for.
func (x *lease) Delayed(err error) {
	x.waits(nil, err)
	x.l.recallKept()
}

func (x *lease) waits(holders []driver.Holder, delayed error) {
	x.answered.Store(true)
	if q := x.queue; q != nil {
		x.l.mu.Lock()
		defer x.l.mu.Unlock()
		if q.lease == x {
			x.l.stepQueue(q, &queueEvent{kind: storeAnswered, holders: holders, delayed: delayed})
		}
	}
}

// Lost receives the store's notification that the grant has ended. It ends the lease for its
// present holder.
func (x *lease) Lost(cause driver.Cause, err error) {
	_, _ = x.l.apply(x, &event{kind: revoke, cause: cause, err: err})
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
	// cancel ends the queue's request at the store, which no waiter needs now.
	cancel context.CancelCauseFunc
	// endWatch ends the watch of the lease, which has ended.
	endWatch context.CancelFunc
}

// apply applies an event to a lease, and carries out the effects. The error is that of a release.
func (l *Locker) apply(x *lease, e *event) (o outcome, err error) {
	l.mu.Lock()
	l.step(x, e, &o)
	l.mu.Unlock()
	err = l.perform(&o)
	return o, err
}

// grant applies the store's grant to a lease. k, if not nil, is the holder's first Lock. The Locker's
// mutex is held.
func (l *Locker) grant(x *lease, g driver.Grant, k *Lock, o *outcome) {
	x.standing.grant, x.holder.token = g, g.Token // mutation: granted
	e := x.validity(granted)
	e.lock, e.provisional = k, g.Provisional
	e.spare, e.within = l.handoffLimits(&g)
	if len(l.kept) > 0 {
		l.dropKept(x.req.Name)
	}
	l.step(x, &e, o)
}

// validity returns an event with the validity of the standing.
func (x *lease) validity(kind eventKind) event {
	g := &x.standing.grant
	return event{kind: kind, sent: x.l.sinceStart(g.SentAt.Time()), ttl: g.TTL, valid: x.holder.set.validFor(g.TTL)}
}

// step applies an event to a lease, and writes the whole of o. It carries out the effects on the
// lease's own data: the list of the Locks, the holder, the loss, the timer. The Locker's mutex is held.
func (l *Locker) step(x *lease, e *event, o *outcome) {
	var f facts
	next := l.observe(x, e, &f)
	*o = outcome{lease: x, holder: x.holder, since: x.state.since, lock: e.lock, err: e.err}
	o.effects = x.state.apply(e, &f)
	switch e.kind {
	case renewed, renewalFailed:
		x.renewErr = e.err
	}
	if o.cause != "" {
		x.loss = &LostError{Name: cmp.Or(x.holder.set.job, x.req.Name), Store: l.where, Token: x.holder.token, Cause: o.cause, Err: e.err}
		if o.cause == CauseExpired {
			x.loss.Err = x.renewErr
		}
	}
	o.loss = x.loss
	if e.kind == granted {
		o.since = x.state.since
	}
	if o.do&link != 0 {
		e.lock.next, x.holder.locks = x.holder.locks, e.lock
	}
	if o.do&unlink != 0 {
		x.holder.remove(e.lock)
	}
	if o.do&contend != 0 {
		l.localContention.found(x.req.Name, reserveAgain)
	}
	if o.do&handOff != 0 {
		o.cancel = l.handOff(x, next)
	}
	if o.do&linger != 0 {
		l.background.begin()
		if x.state.phase == kept {
			l.keep(x, o.keep)
		} else {
			x.timer = time.AfterFunc(o.keep, func() { _, _ = l.apply(x, &event{kind: lingered}) })
		}
	}
	l.index(x, e, &f, o.do)
	if x.endWatch != nil && !x.state.alive() {
		o.endWatch, x.endWatch = x.endWatch, nil
	}
}

// observe collects the facts for an event, and finds the waiter that can get the lease.
func (l *Locker) observe(x *lease, e *event, f *facts) (next *waiter) {
	switch e.kind {
	case granted, unlocked, left, dropped, checked, ticked, resumed, renewed, renewalFailed, lingered, taken, recalled, closed:
	case joined:
		f.stale = x.holder != e.lock.holder
		return nil
	case limitReached:
		f.used = x.holder == e.lock.holder && e.lock.ended.Load() == nil // it may drain
		return nil
	default:
		return nil
	}
	g := &x.standing.grant
	if x.state.forever {
		f.now = l.now()
	} else {
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
		if next = l.nextHolder(x); next != nil {
			f.next, f.nextValid = true, next.set.validFor(g.TTL)
		}
		if x.holder.set.sticky > 0 {
			f.sticky = l.keepFor(x)
		}
	case closed:
		f.storeKeeps = l.guarantees.Load().Linger
		for k := x.holder.locks; k != nil; k = k.next {
			f.minHold = max(f.minHold, k.minHold)
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
	switch ends := alive || x.state.phase == lost; {
	case ends && x.place == 0:
		l.leases = append(l.leases, x)
		l.leaseCount++
		x.place, x.number = len(l.leases), l.leaseCount
	case !ends && x.place > 0:
		last := l.leases[len(l.leases)-1]
		l.leases[x.place-1], last.place = last, x.place
		l.leases[len(l.leases)-1] = nil
		l.leases, x.place = l.leases[:len(l.leases)-1], 0
	}
	if x.kept != (x.state.phase == kept) {
		l.indexKept(x)
	}
	if !alive {
		if x.valid.Load() != nil {
			x.valid.Store(nil)
			l.schedule.remove(x)
			if x.standing.grant.Provisional {
				l.schedule.rest() // most are released before they need their confirmation
			}
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
	case opened, joined, taken:
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
	if o.endWatch != nil {
		o.endWatch()
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
	if o.do&reportRelease != 0 && o.loss == nil { // else Close has reported the end of the lock
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
		o.holder.releaseLater(o.keep, o.since, o.loss == nil, o.quiet)
	}
	if o.do&undo != 0 {
		l.undoLater(o.lease)
	}
	return err
}
