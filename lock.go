package holdfast

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Lock is a held lock. Its methods may be called from any goroutine.
type Lock struct {
	hold    *hold
	parent  context.Context // what the caller gave
	ctx     lockContext
	end     context.CancelCauseFunc
	limit   *time.Timer // MaxHold, or nil
	minHold time.Duration
	// under are the other locks of a LockAll, in name order before this one.
	under []*Lock

	once   sync.Once
	result error
}

// Grant is what the store gave for one name.
type Grant struct {
	Name  string
	Token uint64
	Slot  int
}

// Context ends when the lock does: with cause ErrReleased after Unlock, a
// *LostError when the lock is lost, ErrHoldLimit after MaxHold, or the cause of
// the caller's context. It ends before the store can grant the name to anyone
// else, except as the store's Guarantees say.
func (k *Lock) Context() context.Context { return &k.ctx }

// Name is what is locked; for LockAll, the last name in order.
func (k *Lock) Name() string { return k.hold.req.Name }

// Token is the fencing token: larger than that of every earlier grant of the
// name. For LockAll it is the last name's; see Grants.
func (k *Lock) Token() uint64 { return k.hold.grant.Token }

// Slot is the permit's number, 0 to n-1 under Limit(n) where the store can tell,
// else -1.
func (k *Lock) Slot() int { return k.hold.grant.Slot }

// Grants lists what is held, by name: one grant, or one per name of LockAll.
func (k *Lock) Grants() []Grant {
	var all []Grant
	for _, p := range k.parts() {
		all = append(all, Grant{Name: p.Name(), Token: p.Token(), Slot: p.Slot()})
	}
	return all
}

func (k *Lock) parts() []*Lock { return append(k.under[:len(k.under):len(k.under)], k) }

// Remaining is the trust left: how long the lock is surely held if no further
// renewal succeeds. It is 0 when the lock is no longer live, and driver.Forever
// where it does not run out.
func (k *Lock) Remaining() time.Duration {
	left := driver.Forever
	for _, p := range k.parts() {
		if !p.live() {
			return 0
		}
		left = min(left, p.hold.trustLeft())
	}
	return max(left, 0)
}

// live tells whether the lock is held and its context has not ended.
func (k *Lock) live() bool { return k.ctx.Err() == nil }

// Unlock releases the lock. It takes no context, since a deferred call often
// runs when the caller's has ended. It blocks at most for the request timeout or
// the trust left, whichever is less; what is not confirmed by then (the error
// matches ErrUnavailable, or ErrRefused where the store said no) goes on in the
// background until it is, or the grant must have lapsed, and Close waits for it.
//
// A lock that was lost before answers a *LostError. Calling Unlock again does
// nothing and returns the same.
func (k *Lock) Unlock() error {
	k.once.Do(func() {
		wait := k.unlockUnder()
		k.result = k.hold.unlock(k)
		wait()
		for i := len(k.under) - 1; i >= 0; i-- {
			if err := k.under[i].Unlock(); err != nil && (k.result == nil || !errors.Is(k.result, ErrLost)) {
				k.result = err
			}
		}
	})
	return k.result
}

// discard unlocks what the caller never gets to see: its MinHold does not count.
func (k *Lock) discard() {
	for _, p := range k.parts() {
		p.minHold = 0
	}
	_ = k.Unlock()
}

// do runs f under the lock and releases it, also when f panics or exits its
// goroutine.
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

// outcome is what Do answers. A loss comes before everything else. A release
// that could not be confirmed is no error: the work is done, and an error would
// make the caller do it again; hooks report it.
func (k *Lock) outcome(work, unlock error) error {
	lost, ok := errors.AsType[*LostError](unlock)
	if !ok {
		return work
	}
	// The lost context's own echo says nothing about the work.
	if echo(work) {
		work = nil
	}
	e := *lost
	e.Work = work
	return &e
}

// echo tells whether an error says nothing but that the context has ended.
func echo(err error) bool {
	switch e := err.(type) {
	case nil:
		return true
	case *LostError:
		return echo(e.Work)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !echo(err) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		return echo(e.Unwrap())
	}
	return err == context.Canceled
}

// unlockUnder begins to unlock the others of a LockAll, all at once: the bound
// of Unlock is that of one release.
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
