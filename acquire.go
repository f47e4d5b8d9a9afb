package holdfast

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var pid = os.Getpid()

// errNoAnswer cancels a request that the store left unanswered.
var errNoAnswer = errors.New("no answer within the request timeout")

// TryLock takes the lock if it is free at once and otherwise answers ErrBusy. It
// never queues and never overtakes those who do.
func (l *Locker) TryLock(ctx context.Context, name string, o ...LockOption) (*Lock, error) {
	return l.lock(ctx, name, o, false)
}

// Lock waits for the lock until ctx ends. The lock's context derives from ctx,
// so ctx bounds the hold as well; Wait bounds the waiting alone. Waiting ends
// with ErrBusy where the store had answered that the name is held, and with
// ErrUnavailable where it had not answered for the request timeout.
func (l *Locker) Lock(ctx context.Context, name string, o ...LockOption) (*Lock, error) {
	return l.lock(ctx, name, o, true)
}

// lock checks the input, before any I/O and before any hook, and takes the lock.
func (l *Locker) lock(ctx context.Context, name string, o []LockOption, wait bool) (*Lock, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s, err := l.cfg.resolve(o)
	if err != nil {
		return nil, err
	}
	// A join is no acquisition: the store hears nothing of it, nor do hooks.
	if k, err := l.reenter(ctx, name, &s); k != nil || err != nil {
		return k, err
	}
	if l.cfg.hooks == nil {
		return l.take(ctx, name, s, wait)
	}
	began := time.Now()
	ctx = start(l.cfg.hooks, ctx, l.describe(EventAcquiring, name, &s))
	k, err := l.take(ctx, name, s, wait)
	e := l.describe(EventAcquired, name, &s)
	e.Took = e.At.Sub(began)
	if err != nil {
		e.Kind, e.Err = EventFailed, err
		if busy, ok := errors.AsType[*BusyError](err); ok {
			e.Holders = busy.Holders
		}
	} else {
		e.Token, e.Slot = k.Token(), k.Slot()
	}
	told := false
	defer func() {
		if !told && k != nil { // a hook has ended this goroutine
			k.discard()
		}
	}()
	l.emit(ctx, e)
	told = true
	return k, err
}

// reenter looks for the name among the locks the context carries.
func (l *Locker) reenter(ctx context.Context, name string, s *settings) (*Lock, error) {
	outer := find(ctx, l, name)
	if outer == nil {
		return nil, nil
	}
	deadlock := func(why string) error {
		return &failure{name: name, store: l.where, kind: ErrSelfDeadlock, err: errors.New(why)}
	}
	have, want := outer.hold.req.Limit, s.limit
	plain := func(limit int) bool { return limit == driver.Exclusive || limit == driver.Unlimited }
	switch {
	case !s.reentrant:
		return nil, deadlock("use Reentrant to join the lock, or NewOwner for a goroutine of its own")
	case !plain(have) || !plain(want):
		return nil, deadlock("semaphores do not re-enter")
	case have == driver.Unlimited && want == driver.Exclusive:
		return nil, deadlock("a shared lock cannot become exclusive under one owner")
	}
	// A hold that ended meanwhile is not joined: the caller's context has ended
	// with it, or the name is locked anew.
	return outer.hold.join(ctx, s), nil
}

// take acquires a name that the context does not hold.
func (l *Locker) take(ctx context.Context, name string, s settings, wait bool) (*Lock, error) {
	if ctx.Err() != nil {
		return nil, &failure{name: name, store: l.where, err: contextError(ctx)}
	}
	l.work.begin()
	defer l.work.end()
	if l.ctx.Err() != nil {
		return nil, l.closedError(name)
	}
	// Wait bounds the first question and the first try, too.
	began := time.Now()
	left := func(d time.Duration) time.Duration {
		if wait && s.hasWait {
			return max(min(d, s.wait-time.Since(began)), 0)
		}
		return d
	}
	g, err := l.know(ctx, left(l.cfg.requestTimeout))
	if err != nil && wait {
		g, err = l.insist(ctx, left(l.requestTimeout(s.ttl)), err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.checkStore(g); err != nil {
		return nil, err
	}

	if !wait && g.Wake == driver.WakePoll {
		// Nobody's place is at the store: those who wait here come first.
		if busy := l.awaited(name); busy != nil {
			return nil, busy
		}
	}
	var held *BusyError
	if !wait || l.tryFirst(name) {
		asked, within := time.Now(), left(l.requestTimeout(s.ttl))
		k, err := l.try(ctx, name, s, wait, within)
		switch {
		case !wait || err == nil:
			return k, err
		case errors.As(err, &held):
			l.crowd.busy(name)
		case !errors.Is(err, ErrUnavailable) || l.ctx.Err() != nil:
			return nil, err
		case ctx.Err() != nil:
			// Both at once: the caller's own end comes first, as where it waits.
			if f, ok := errors.AsType[*failure](err); ok {
				err = f.err
			}
			return nil, &failure{name: name, store: l.where, kind: ErrUnavailable, err: fmt.Errorf("%w: %w", contextError(ctx), err)}
		case time.Since(asked) >= within:
			return nil, err
		}
		// A request that failed before its time was up is made again.
	}
	return l.await(ctx, name, s, held, began.Add(s.wait))
}

// awaited answers busy if goroutines of this Locker wait for the name.
func (l *Locker) awaited(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[name]; q != nil && q.head != nil {
		return &BusyError{Name: name, Store: l.where, Holders: q.holders}
	}
	return nil
}

// tryFirst tells whether asking first without queueing is worth it: a lock that is
// free then costs no goroutine. Where asking costs a round trip it is not, unless
// the store says so, and if the name was found held lately.
func (l *Locker) tryFirst(name string) bool {
	if g := l.guarantees.Load(); g.Scope == driver.ScopeNetwork && !(g.TryFirst && l.crowd.calm(name)) {
		return false
	}
	if l.waiting.Load() == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues[name] == nil
}

// crowd remembers roughly, in a fixed space, which names were found held when they
// were tried: for the next few locks of such a name trying would be in vain.
type crowd [256]atomic.Int32

// spared is how many locks go without a try after one that found the name held.
const spared = 8

func (c *crowd) of(name string) *atomic.Int32 {
	return &c[maphash.String(crowdSeed, name)%uint64(len(c))]
}

var crowdSeed = maphash.MakeSeed()

func (c *crowd) busy(name string) { c.of(name).Store(spared) }

func (c *crowd) calm(name string) bool {
	n := c.of(name)
	if n.Load() <= 0 {
		return true
	}
	n.Add(-1)
	return false
}

// try asks once, on the caller's goroutine and within d; first if it will wait otherwise.
func (l *Locker) try(ctx context.Context, name string, s settings, first bool, d time.Duration) (*Lock, error) {
	h := l.newHold(ctx, name, s)
	h.req.First = first
	g, err := l.store.Acquire(l.bound(&h.asking, ctx, false, d), h.req)
	h.asking.end()
	if err == nil {
		return l.finish(ctx, h, g, &s)
	}
	if l.store.Classify(err) == driver.Unknown {
		l.undoLater(h)
	}
	return nil, l.explain(ctx, name, err)
}

// finish turns a grant into a Lock, or gives it back when nobody can use it.
func (l *Locker) finish(ctx context.Context, h *hold, g driver.Grant, s *settings) (*Lock, error) {
	name := h.req.Name
	switch {
	case !h.accept(g):
		l.undoLater(h)
		return nil, &failure{name: name, store: l.where, kind: ErrUnavailable,
			err: errors.New("the grant ended before its answer arrived")}
	case ctx.Err() != nil:
		h.abandon()
		return nil, &failure{name: name, store: l.where, err: contextError(ctx)}
	}
	k, _ := h.newLock(ctx, s)
	if !l.remember(h) {
		k.discard() // Close waits for this goroutine
		return nil, l.closedError(name)
	}
	l.sched.add(h)
	return k, nil
}

// remember enters a hold among those that Close ends; false if it has begun to.
func (l *Locker) remember(h *hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.held.push(h)
	return true
}

func (l *Locker) forget(h *hold) {
	l.mu.Lock()
	l.held.remove(h)
	l.mu.Unlock()
}

// holdList links the holds of a Locker.
type holdList struct{ head *hold }

func (hl *holdList) push(h *hold) {
	h.next = hl.head
	if hl.head != nil {
		hl.head.prev = h
	}
	hl.head = h
}

// remove takes h out if it is in.
func (hl *holdList) remove(h *hold) {
	if h.prev == nil && hl.head != h {
		return
	}
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		hl.head = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.prev, h.next = nil, nil
}

func (hl *holdList) all() []*hold {
	var all []*hold
	for h := hl.head; h != nil; h = h.next {
		all = append(all, h)
	}
	return all
}
