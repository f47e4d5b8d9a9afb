package holdfast

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Lock is a held lock. Its methods may be called from any goroutine. The caller has to
// call Unlock, also after a loss.
type Lock struct {
	holder  *holder
	parent  context.Context // the caller's
	ctx     lockContext
	end     context.CancelCauseFunc
	limit   *time.Timer   // MaxHold, or nil
	minHold time.Duration // its owner reads it, or writes it under the Locker's mutex
	// drainFor is how long the Locker renews the lock after the end of the caller's context.
	drainFor time.Duration
	// under are the other Locks of a LockAll, whose names come before this one's.
	under []*Lock
	next  *Lock // of the same holder
	// ended is the cause of the lock's end: Unlock, a loss, or MaxHold. It is nil while
	// the lock is held, also after the caller's context has ended.
	ended atomic.Pointer[error]
	// drainFrom is when the schedule first found the caller's context ended, counted from
	// the making of the Locker; 0 before. Guarded by the Locker's mutex.
	drainFrom time.Duration
	wanted    *wanted // made by the first Wanted; guarded by the Locker's mutex
	// drain is made by the first DrainContext.
	drain atomic.Pointer[drainContext]

	once   sync.Once
	result error
}

// newLock prepares a Lock for a holder. An event opens it.
func newLock(h *holder, k *Lock, parent context.Context, s *settings) *Lock {
	inner, end := context.WithCancelCause(parent)
	k.holder, k.parent, k.ctx, k.end = h, parent, lockContext{inner, k}, end
	k.minHold, k.drainFor = s.minHold, s.drain
	return k
}

// open makes k, which newLock has prepared, an open Lock of its holder. If the lease
// has ended meanwhile, open ends the context of k.
func (k *Lock) open(kind eventKind, s *settings) (opened bool) {
	l := k.holder.lease.l
	var o outcome
	l.mu.Lock()
	l.step(k.holder.lease, &event{kind: kind, lock: k}, &o)
	opened = o.do&endOne == 0
	if s.hasMaxHold && opened {
		k.startLimit(s.maxHold)
	}
	l.mu.Unlock()
	_ = l.perform(&o)
	return opened
}

// startLimit starts the timer of a MaxHold. The Locker's mutex is held.
func (k *Lock) startLimit(d time.Duration) {
	x := k.holder.lease
	k.limit = time.AfterFunc(d, func() { _, _ = x.l.apply(x, &event{kind: limitReached, lock: k}) })
}

// finish ends the context of k. Only the first cause counts.
func (k *Lock) finish(cause error) {
	var end *error
	switch cause { // no allocation for the usual ends
	case ErrReleased:
		end = &ErrReleased
	case ErrHoldLimit:
		end = &ErrHoldLimit
	default:
		lost := cause
		end = &lost
	}
	k.ended.CompareAndSwap(nil, end)
	k.end(cause)
	if d := k.drain.Load(); d != nil {
		d.end(cause)
	}
	if k.limit != nil {
		k.limit.Stop()
	}
}

// check ends the context of k if its lease has ended or expired. It does not wait for a timer,
// or for another goroutine that has found the same. The other effects of the end have a goroutine of
// their own.
func (k *Lock) check() {
	x := k.holder.lease
	if x.valid.Load().left() > 0 {
		return
	}
	var o outcome
	x.l.mu.Lock()
	x.l.step(x, &event{kind: checked}, &o)
	x.l.mu.Unlock()
	if later := o; o.do != 0 {
		x.l.background.run(func() { _ = x.l.perform(&later) })
	}
	if o.loss != nil {
		k.finish(o.loss)
	}
}

// Lease is what the store keeps for one name of a lock.
type Lease struct {
	Name  string
	Token uint64
	Slot  int
}

// Context returns the context of the lock, which ends when the lock does. Its cause is
// ErrReleased after Unlock, a *LostError after a loss, ErrHoldLimit after MaxHold, or
// the cause of the caller's context. It ends before the store can grant the name to
// anyone else, with the exceptions that the store's Guarantees name. After the end of
// the caller's context the lock is still held until Unlock; see [Drain].
func (k *Lock) Context() context.Context { return &k.ctx }

// Name returns the name that is locked; for LockAll, the last name in order.
func (k *Lock) Name() string { return k.holder.lease.req.Name }

// Token returns the fencing token, which is larger than that of every earlier grant of
// the name. For LockAll it is that of the last name; see Leases.
func (k *Lock) Token() uint64 { return k.holder.token }

// Slot returns the number of the permit, 0 to n-1 under Limit(n), or -1 if there is none
// or the store does not number permits.
func (k *Lock) Slot() int { return k.holder.lease.firstStanding.grant.Slot }

// Leases returns the leases in the order of their names: one, or one per name of
// LockAll.
func (k *Lock) Leases() []Lease {
	var all []Lease
	for _, p := range k.parts() {
		all = append(all, Lease{Name: p.Name(), Token: p.Token(), Slot: p.Slot()})
	}
	return all
}

func (k *Lock) parts() []*Lock { return append(k.under[:len(k.under):len(k.under)], k) }

// Remaining returns for how much longer the lock is certainly held if no further
// renewal succeeds. It is 0 if the lock has ended, and driver.Forever if the lock does
// not expire. The end of the caller's context alone does not end the lock; see [Drain].
func (k *Lock) Remaining() time.Duration {
	if !k.held() {
		return 0
	}
	left := driver.Forever
	for _, p := range k.parts() {
		left = min(left, p.holder.lease.valid.Load().left())
	}
	return max(left, 0)
}

// live reports whether the lock is held and its context has not ended.
func (k *Lock) live() bool { return k.ctx.Err() == nil }

// held reports whether the lock has not ended. Its context may have ended with the caller's.
func (k *Lock) held() bool {
	for _, u := range k.under {
		if u.check(); u.ended.Load() != nil {
			return false
		}
	}
	k.check()
	return k.ended.Load() == nil
}

// drains reports whether the Locker still renews the lock after the end of the caller's
// context: the lock has not ended, and the time of Drain is not over. The Locker's mutex is
// held.
func (k *Lock) drains(now time.Duration) bool {
	if k.ended.Load() != nil {
		return false
	}
	if k.drainFrom == 0 {
		k.drainFrom = max(now, 1)
	}
	return now-k.drainFrom < k.drainFor
}

// Unlock releases the lock. It takes no context, because a deferred call often runs when the
// caller's context has ended. It blocks for the request timeout or Remaining, whichever is
// less. A release that is not confirmed by then continues in the background, and Close waits
// for it. It ends when the store confirms it, or when the lease must have expired. The error
// then matches ErrUnavailable, or ErrRefused if the store refused the release.
//
// Unlock returns a *LostError if the lock was lost before. Calling it again does
// nothing and returns the same.
func (k *Lock) Unlock() error {
	k.once.Do(func() {
		wait := k.unlockUnder()
		k.result = k.unlock()
		wait()
		for i := len(k.under) - 1; i >= 0; i-- {
			if err := k.under[i].Unlock(); err != nil && (k.result == nil || !errors.Is(k.result, ErrLost)) {
				k.result = err
			}
		}
	})
	return k.result
}

// unlock removes one Lock from the lease. The last one releases the lease or hands it off.
func (k *Lock) unlock() error {
	x := k.holder.lease
	l := x.l
	l.background.begin() // Close waits for a release that is under way
	defer l.background.end()
	o, err := l.apply(x, &event{kind: unlocked, lock: k, keep: k.minHold})
	if !o.final {
		o, err = l.apply(x, &event{kind: left, lock: k})
	}
	if o.loss != nil {
		return o.loss
	}
	return err
}

// discard unlocks a Lock that the caller never gets. Its MinHold does not count.
func (k *Lock) discard() {
	for _, p := range k.parts() {
		p.setMinHold(0)
	}
	_ = k.Unlock()
}

// Keep lets the lock be kept until d from now, also after Unlock or Close, as MinHold does. It replaces MinHold and
// earlier calls. So a holder that has promised the lock to someone else until a time can leave before. A d below 0
// counts as 0, and the sum of d and the age of the lock as at most 24 h.
func (k *Lock) Keep(d time.Duration) {
	for _, p := range k.parts() {
		x := p.holder.lease
		x.l.mu.Lock()
		p.minHold = min(min(max(d, 0), MaxTTL)+x.l.now()-x.state.since, MaxTTL)
		x.l.mu.Unlock()
	}
}

func (k *Lock) setMinHold(d time.Duration) {
	l := k.holder.lease.l
	l.mu.Lock()
	defer l.mu.Unlock()
	k.minHold = d
}

// do runs f under the lock and releases it, even if f panics or exits its goroutine.
func (k *Lock) do(f func(context.Context) error) (err error) {
	returned := false
	defer func() {
		uerr := k.Unlock()
		if returned {
			err = k.outcome(err, uerr)
		}
	}()
	err = f(k.Context())
	returned = true
	return err
}

// outcome returns the error of Do. A loss comes before everything else. A release that
// could not be confirmed is no error: the work is done, and an error would make the
// caller repeat it. Hooks report it.
func (k *Lock) outcome(work, unlock error) error {
	lost, ok := errors.AsType[*LostError](unlock)
	if !ok {
		return work
	}
	if onlyCancelled(work) {
		work = nil
	}
	e := *lost
	e.Work = work
	return &e
}

// onlyCancelled reports whether an error contains only the end of a context, and no result of
// the work.
func onlyCancelled(err error) bool {
	switch e := err.(type) {
	case nil:
		return true
	case *LostError:
		return onlyCancelled(e.Work)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !onlyCancelled(err) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		return onlyCancelled(e.Unwrap())
	}
	return err == context.Canceled
}

// unlockUnder starts to unlock the other Locks of a LockAll at the same time, so that Unlock
// blocks no longer than one release. The returned function waits for them.
func (k *Lock) unlockUnder() (wait func()) {
	if len(k.under) == 0 {
		return func() {}
	}
	var wg sync.WaitGroup
	for _, u := range k.under {
		wg.Go(func() { _ = u.Unlock() })
	}
	return wg.Wait
}
