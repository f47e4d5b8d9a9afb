package holdfast

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// holdState is where a grant stands in its life.
type holdState int

const (
	pending   holdState = iota // asked for
	held                       // granted, and trusted
	lingering                  // unlocked; kept for its MinHold
	lost                       // ended without a release
	released                   // given back, or being given back
)

// hold is one grant of the store, from the request to the release. One or, by
// reentrancy, several Locks share it.
type hold struct {
	l   *Locker
	req driver.Request
	q   *queue // the queue it was asked for, or nil
	// set and ctx are those of the goroutine it is for; a queue's hold gets them
	// when it is granted, before it is held.
	set settings
	ctx context.Context
	// asking is the context of a request that does not wait.
	asking bounded

	// Of a grant that is passed on in the process: how often it was, the hold that
	// the store knows, and there the hold that has it now.
	passes int
	root   *hold
	heir   atomic.Pointer[hold]

	// answered: the store has said that the name is held.
	answered atomic.Bool

	mu    sync.Mutex
	state holdState
	grant driver.Grant // SentAt and TTL change with renewals, the rest does not
	// forever: the grant does not run out. It does not change once held.
	forever bool
	trust   time.Duration
	since   time.Time // of the grant
	locks   []*Lock   // not yet unlocked
	// What the first Lock needs, in one piece with the hold.
	first   Lock
	firstIn [1]*Lock
	loss    *LostError
	timer   *time.Timer   // lingering
	keep    time.Duration // the longest MinHold of those who unlocked
	back    bool          // given back, or being given back, after a loss

	// The scheduler's, under its mutex.
	due   time.Time
	index int // in the heap, 0 if not in it; counted from 1
	// Under mu: when to renew next, and whether a renewal is on its way.
	renewAt  time.Time
	renewing bool

	// Under the Locker's mutex.
	prev, next *hold
}

func (l *Locker) newHold(ctx context.Context, name string, s settings) *hold {
	h := &hold{l: l, set: s, ctx: ctx}
	h.req = driver.Request{ID: l.newID(), Name: name, Limit: s.limit, TTL: s.ttl, From: h}
	return h
}

// Owner tells who asks: the goroutine at the head of the local queue, if the
// request waits there.
func (h *hold) Owner() driver.Owner {
	return driver.Owner{ID: h.req.ID, Host: h.l.cfg.host, PID: pid, Instance: h.l.cfg.instance, Reason: h.l.reason(h)}
}

// Queued takes note that the store has answered.
func (h *hold) Queued(holders []driver.Holder) {
	h.answered.Store(true)
	if h.q != nil {
		h.l.noteQueued(h, holders)
	}
}

// Lost is the store's push. It concerns whoever has the grant now.
func (h *hold) Lost(cause driver.Cause, err error) {
	for {
		now := h.heir.Load()
		if now == nil {
			now = h
		}
		if now.lose(cause, err) || h.heir.Load() == now || now == h && h.heir.Load() == nil {
			return
		}
	}
}

// accept takes the store's yes. It reports false where the grant is of no use:
// trust in it ran out, or the store took it back, before it arrived.
func (h *hold) accept(g driver.Grant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loss != nil {
		return false
	}
	h.grant = g
	h.forever = g.TTL == driver.Forever
	h.setTrust()
	elapsed, slept := g.SentAt.Elapsed()
	if elapsed >= h.trust {
		return false
	}
	h.state = held
	h.since = g.SentAt.Time().Add(elapsed - slept) // now
	return true
}

// setTrust works out until when the grant counts: law 2.
func (h *hold) setTrust() {
	if h.forever {
		h.trust = driver.Forever
		return
	}
	margin := h.grant.TTL / 10
	if h.set.hasMargin {
		margin = h.set.margin
	}
	h.trust = h.grant.TTL - margin
	h.renewAt = h.grant.SentAt.Time().Add(h.grant.TTL / 3)
}

func (h *hold) trustLeft() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trustLeftLocked()
}

func (h *hold) trustLeftLocked() time.Duration {
	if h.forever {
		return driver.Forever
	}
	elapsed, _ := h.grant.SentAt.Elapsed()
	return h.trust - elapsed
}

// newLock hands the hold to a caller. The hold was held; if it has ended
// meanwhile, or its last Lock is being unlocked, the Lock is dead and not counted, and in
// is false.
func (h *hold) newLock(parent context.Context, s *settings) (_ *Lock, in bool) {
	inner, end := context.WithCancelCause(parent)
	h.mu.Lock()
	defer h.mu.Unlock()
	k := &h.first
	joins := k.hold != nil
	if joins {
		k = &Lock{}
	} else {
		h.locks = h.firstIn[:0]
	}
	k.hold, k.parent, k.ctx, k.end = h, parent, lockContext{inner, k}, end
	k.minHold = s.minHold
	if h.state != held || joins && len(h.locks) == 0 {
		if h.loss != nil { // else a nil *LostError would become a cause
			end(h.loss)
		} else {
			end(ErrReleased)
		}
		return k, false
	}
	h.locks = append(h.locks, k)
	if s.hasMaxHold {
		k.limit = time.AfterFunc(s.maxHold, func() { h.endByLimit(k) })
	}
	return k, true
}

func (h *hold) endByLimit(k *Lock) {
	h.mu.Lock()
	ended := h.state != held || k.ctx.Context.Err() != nil
	k.end(ErrHoldLimit)
	h.mu.Unlock()
	if !ended {
		h.report(EventHoldLimit, nil, h.since)
	}
}

// join gives the context another Lock on a hold it carries, or nil if the hold
// has just ended.
func (h *hold) join(parent context.Context, s *settings) *Lock {
	h.mu.Lock()
	ok := h.state == held && len(h.locks) > 0 && h.trustLeftLocked() > 0
	h.mu.Unlock()
	if !ok {
		return nil
	}
	k, in := h.newLock(parent, s)
	switch {
	case !in:
		return nil
	case !k.live():
		k.discard() // it may be the last by now
		return nil
	}
	return k
}

// checkTrust ends the hold if its trust has run out, whatever timers did. It
// returns the trust left.
func (h *hold) checkTrust() time.Duration {
	h.mu.Lock()
	left, cause := h.judge()
	if cause != "" {
		h.loseLocked(cause, nil)
	} else {
		h.mu.Unlock()
	}
	return left
}

// judge looks at the clock: the trust left, or why there is none any more. mu is
// held.
func (h *hold) judge() (left time.Duration, cause driver.Cause) {
	if h.state != held && h.state != lingering {
		return 0, ""
	}
	if h.forever {
		return driver.Forever, ""
	}
	elapsed, slept := h.grant.SentAt.Elapsed()
	switch {
	case elapsed < h.trust:
		return h.trust - elapsed, ""
	case elapsed-slept < h.trust:
		return 0, Slept
	}
	return 0, Expired
}

// lose ends the hold; only the first call counts. It reports whether it did.
func (h *hold) lose(cause driver.Cause, err error) bool {
	h.mu.Lock()
	return h.loseLocked(cause, err)
}

// loseLocked is called with mu held and gives it back.
func (h *hold) loseLocked(cause driver.Cause, err error) bool {
	if h.state == lost || h.state == released || h.loss != nil {
		h.mu.Unlock()
		return false
	}
	h.loss = &LostError{Name: h.req.Name, Store: h.l.where, Token: h.grant.Token, Cause: cause, Err: err}
	if h.state == pending { // accept will see it
		h.mu.Unlock()
		return true
	}
	was := h.state
	h.state = lost
	// Under mu, so that whoever looked at the clock and comes out of checkTrust
	// finds the contexts ended.
	for _, k := range h.locks {
		k.end(h.loss)
		if k.limit != nil {
			k.limit.Stop()
		}
	}
	loss, since := h.loss, h.since
	h.mu.Unlock()

	h.l.sched.remove(h)
	h.report(EventLost, loss, since)
	if was == lingering {
		h.releaseLater(h.grant, 0) // it may still stand, and no Unlock will come
		h.finishLinger()
	}
	return true
}

// wanted tells whether anyone still relies on the grant, so that it is worth
// renewing: mu is held.
func (h *hold) wanted() bool {
	if h.state == lingering {
		return true
	}
	for _, k := range h.locks {
		if k.ctx.Context.Err() == nil {
			return true
		}
	}
	return false
}

// unlock takes one Lock away and, with the last, gives the grant back.
func (h *hold) unlock(k *Lock) error {
	h.l.work.begin() // Close waits for a release on its way
	defer h.l.work.end()
	h.mu.Lock()
	left, cause := h.judge()
	if cause != "" {
		h.loseLocked(cause, nil)
		h.mu.Lock()
	}
	h.keep = max(h.keep, k.minHold)
	// The context ends before the store can hear of the release.
	k.end(ErrReleased)
	if k.limit != nil {
		k.limit.Stop()
	}
	for i, other := range h.locks {
		if other == k {
			h.locks = append(h.locks[:i], h.locks[i+1:]...)
			break
		}
	}
	loss, last := h.loss, len(h.locks) == 0
	if !last {
		h.mu.Unlock()
		if loss != nil {
			return loss
		}
		return nil
	}
	if h.mayPassOn(left) {
		h.mu.Unlock()
		if h.passOn() {
			return nil
		}
		h.mu.Lock()
		loss = h.loss // it may have been lost meanwhile
	}
	var keep time.Duration
	if h.keep > 0 {
		keep = h.keep - time.Since(h.since)
	}
	if loss == nil && keep > 0 && !h.l.guarantees.Load().Linger {
		// The scheduler goes on renewing it, and Close waits.
		h.state = lingering
		h.l.work.begin()
		h.timer = time.AfterFunc(keep, h.endLinger)
		due := h.nextDue() // renewal may have stopped with the contexts
		h.mu.Unlock()
		h.l.sched.look(h, due)
		return nil
	}
	if loss == nil {
		h.state = released
	}
	g, back := h.grant, h.back
	h.back = true
	h.mu.Unlock()
	h.l.forget(h)
	if loss != nil {
		// It may still stand: asked to end, or within the margin.
		if !back {
			h.releaseLater(g, 0)
		}
		return loss
	}
	h.l.sched.remove(h)
	return h.release(g, max(keep, 0), left)
}

// endLinger releases a lingering grant.
func (h *hold) endLinger() {
	h.mu.Lock()
	if h.state != lingering {
		h.mu.Unlock()
		return
	}
	h.state = released
	g, left := h.grant, h.trustLeftLocked()
	h.mu.Unlock()
	h.l.sched.remove(h)
	_ = h.release(g, 0, left) // hooks report what could not be confirmed
	h.finishLinger()
}

// finishLinger is called once, by whoever ends the lingering.
func (h *hold) finishLinger() {
	h.timer.Stop()
	h.l.forget(h)
	h.l.work.end()
}

// close ends the hold because its Locker closes, and gives it back.
func (h *hold) close() {
	h.mu.Lock()
	if h.state != held && h.state != lost || h.back {
		h.mu.Unlock()
		return // lingering grants are waited for
	}
	h.back = true
	g := h.grant
	h.loseLocked(Closed, nil) // nothing new where it was lost before
	h.l.forget(h)
	h.releaseLater(g, 0)
}
