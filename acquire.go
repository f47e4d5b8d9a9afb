package holdfast

import (
	"context"
	"errors"
	"hash/maphash"
	"os"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var pid = os.Getpid()

// errNoAnswer cancels a request that the store left unanswered.
var errNoAnswer = errors.New("no answer within the request timeout")

// errEndedBeforeAnswer reports a grant that expired or was revoked before its answer arrived.
var errEndedBeforeAnswer = errors.New("the grant ended before its answer arrived")

// TryLock acquires the lock if it is free at once, and returns ErrBusy otherwise. It
// never queues and never overtakes a waiter.
func (l *Locker) TryLock(ctx context.Context, name string, o ...LockOption) (*Lock, error) {
	return l.lock(ctx, name, o, false)
}

// Lock waits for the lock until ctx ends. The lock's context derives from ctx, so the
// end of ctx also ends the work; the lock is held until Unlock, for at most [Drain]. The
// options Wait and WaitContext limit the waiting alone.
//
// After Wait or a deadline the error matches ErrBusy if the store has answered that the
// name is held. It matches ErrUnavailable if the store has not answered for the request
// timeout. If the caller's context was cancelled, the error matches context.Canceled and
// neither of them, whatever the store has answered.
func (l *Locker) Lock(ctx context.Context, name string, o ...LockOption) (*Lock, error) {
	return l.lock(ctx, name, o, true)
}

// lock checks the input, before any I/O and before any hook, and acquires the lock.
func (l *Locker) lock(ctx context.Context, name string, o []LockOption, wait bool) (*Lock, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	a := acquisition{l: l, ctx: ctx, name: name, wait: wait}
	var err error
	if a.set, err = l.cfg.resolve(o); err != nil {
		return nil, err
	}
	// A join is not an acquisition: it reaches neither the store nor a hook.
	if k, err := l.reenter(ctx, name, a.set); k != nil || err != nil {
		return k, err
	}
	if l.cfg.hooks == nil {
		return a.run()
	}
	began := time.Now()
	a.ctx = start(l.cfg.hooks, ctx, l.describe(EventAcquiring, name, a.set))
	k, err := a.run()
	e := l.describe(EventAcquired, name, a.set)
	e.Took = e.At.Sub(began)
	if err != nil {
		e.Kind, e.Err = EventFailed, err
		if busy, ok := errors.AsType[*BusyError](err); ok {
			e.Holders = busy.Holders
		}
	} else {
		e.Token, e.Slot = k.Token(), k.Slot()
	}
	returned := false
	defer func() {
		if !returned && k != nil { // a hook has ended this goroutine
			k.discard()
		}
	}()
	l.emit(a.ctx, e)
	returned = true
	return k, err
}

// reenter joins the lock of that name which the context carries, if there is one.
func (l *Locker) reenter(ctx context.Context, name string, s *settings) (*Lock, error) {
	outer := find(ctx, name, func(k *Lock) bool { return k.holder.lease.l == l && k.held() })
	if outer == nil || ctx.Err() != nil {
		return nil, nil
	}
	deadlock := func(why string) error {
		return &failure{name: name, store: l.where, kind: ErrSelfDeadlock, err: errors.New(why)}
	}
	have, want := outer.holder.lease.req.Limit, s.limit
	plain := func(limit int) bool { return limit == driver.Exclusive || limit == driver.Unlimited }
	switch {
	case !s.reentrant:
		return nil, deadlock("use Reentrant to join the lock, or NewOwner for a goroutine of its own")
	case !plain(have) || !plain(want):
		return nil, deadlock("semaphores do not re-enter")
	case have == driver.Unlimited && want == driver.Exclusive:
		return nil, deadlock("a shared lock cannot become exclusive under one owner")
	}
	return outer.holder.join(ctx, s), nil
}

// join returns a further Lock on the holder's lease, or nil if the lease has just
// ended: then the caller's context has ended with it, or the name is acquired again.
func (h *holder) join(ctx context.Context, s *settings) *Lock {
	k := newLock(h, &Lock{}, ctx, s)
	switch {
	case !k.open(joined, s):
		return nil
	case !k.live():
		k.discard() // it may be the last open Lock by now
		return nil
	}
	return k
}

// acquisition is one call of Lock or TryLock, for a name that the context does not
// hold.
type acquisition struct {
	l   *Locker
	ctx context.Context // the caller's
	// waiting is the context of the wait: ctx, or a context that WaitContext also ends.
	waiting context.Context
	name    string
	set     *settings
	wait    bool
	began   time.Duration // since the creation of the Locker, like requestedAt
	// requestedAt is when the first request begins: after the store has returned its guarantees.
	requestedAt time.Duration
	// busy is the fast path's answer that the name is held, else nil.
	busy *BusyError
}

// run goes through the phases of an acquisition: the store's guarantees, one request
// on the caller's goroutine, and the local queue.
func (a *acquisition) run() (*Lock, error) {
	l := a.l
	var stop context.CancelFunc
	a.waiting, stop = a.set.waiting(a.ctx)
	defer stop()
	if a.waiting.Err() != nil {
		return nil, a.fail(nil, contextError(a.waiting))
	}
	l.background.begin()
	defer l.background.end()
	if l.ctx.Err() != nil {
		return nil, l.closedError(a.name)
	}
	a.began = l.now()
	a.requestedAt = a.began
	g, err := a.guarantees()
	if err != nil {
		return nil, err
	}
	set, err := a.set.forStore(g)
	if err != nil {
		return nil, err
	}
	a.set = set
	if set.sticky > 0 {
		if err := l.checkSticky(a.name, g); err != nil {
			return nil, err
		}
	}
	if l.keptCount.Load() > 0 {
		if k, err := a.take(); k != nil || err != nil {
			return k, err
		}
	}
	if !a.wait {
		return a.once(g)
	}
	if l.useFastPath(a.name) {
		if k, err := a.fastPath(); k != nil || err != nil {
			return k, err
		}
	}
	return l.await(a)
}

func (a *acquisition) fail(kind, err error) error {
	return &failure{name: a.name, store: a.l.where, kind: kind, err: err}
}

// left returns d, or the rest of Wait if that is shorter.
func (a *acquisition) left(d time.Duration) time.Duration {
	if a.wait && a.set.hasWait {
		return max(min(d, a.set.wait-(a.l.now()-a.began)), 0)
	}
	return d
}

func (a *acquisition) requestTimeout() time.Duration {
	return a.left(a.l.requestTimeout(a.set.ttl))
}

// guarantees returns the store's guarantees. Wait also limits the time for this request. If the
// first request fails, a caller that waits repeats it.
func (a *acquisition) guarantees() (*driver.Guarantees, error) {
	if g := a.l.guarantees.Load(); g != nil {
		return g, nil
	}
	g, err := a.l.loadGuarantees(a.waiting, a.left(a.l.cfg.requestTimeout))
	if err != nil && a.wait {
		g, err = a.l.retryGuarantees(a.waiting, a.requestTimeout(), err)
	}
	a.requestedAt = a.l.now()
	return g, err
}

// once makes the only request of a TryLock.
func (a *acquisition) once(g *driver.Guarantees) (*Lock, error) {
	if g.Wake == driver.WakePoll {
		// No waiter has an entry at the store: the waiters of this Locker come first.
		if busy := a.l.awaited(a.name); busy != nil {
			return nil, busy
		}
	}
	return a.try(a.requestTimeout())
}

// fastPath makes a first request without queueing. It returns neither a Lock nor an
// error if the caller has to queue.
func (a *acquisition) fastPath() (*Lock, error) {
	l := a.l
	timeout := a.requestTimeout()
	k, err := a.try(timeout)
	a.busy, _ = errors.AsType[*BusyError](err)
	switch {
	case err == nil:
		return k, nil
	case a.busy != nil:
		l.contention.found(a.name, skipFastPath)
		return nil, nil
	case !errors.Is(err, ErrUnavailable) || l.ctx.Err() != nil:
		return nil, err
	case a.waiting.Err() != nil:
		// The request failed as the caller's context ended: the end of the context comes first,
		// as in the queue.
		if f, ok := errors.AsType[*failure](err); ok {
			err = f.err
		}
		return nil, l.unanswered(a.name, contextError(a.waiting), err)
	case l.now()-a.requestedAt >= timeout:
		return nil, err
	}
	return nil, nil // a request that failed before its timeout is repeated in the queue
}

// try makes one request that does not wait, on the caller's goroutine.
func (a *acquisition) try(timeout time.Duration) (*Lock, error) {
	l := a.l
	x := l.newLease(a.ctx, a.name, a.set)
	x.req.First = a.wait
	l.reserve(&x.req, a.set.sticky > 0)
	g, err := l.store.Acquire(l.withTimeout(&x.acquiring, a.waiting, false, timeout), x.req)
	x.acquiring.end()
	if err != nil {
		l.failed(x, err)
		return nil, l.explain(a.waiting, a.name, err)
	}
	return a.accept(x, g)
}

// failed applies the failure of a request to its lease, and returns the code of the error.
func (l *Locker) failed(x *lease, err error) driver.Code {
	code := l.store.Classify(err)
	e := event{kind: denied}
	if code == driver.CodeUnknown {
		e.kind = unanswered
	}
	_, _ = l.apply(x, &e)
	return code
}

// accept turns a grant into a Lock, or gives it back if the caller cannot use it.
func (a *acquisition) accept(x *lease, g driver.Grant) (*Lock, error) {
	l := a.l
	k := newLock(x.holder, &x.holder.first, a.ctx, a.set)
	first := k
	var err error
	if a.waiting.Err() != nil { // not under the mutex: the context is the caller's
		err, first = a.fail(nil, contextError(a.waiting)), nil
	}
	var o outcome
	l.mu.Lock()
	if l.closed && err == nil {
		err, first = l.closedError(a.name), nil
	}
	l.grant(x, g, first, &o)
	switch {
	case x.state.phase != held:
		err = a.fail(ErrUnavailable, errEndedBeforeAnswer)
	case a.set.hasMaxHold && err == nil:
		k.startLimit(a.set.maxHold)
	}
	if err != nil && x.state.phase == held {
		l.step(x, &event{kind: dropped}, &o)
	}
	l.mu.Unlock()
	_ = l.perform(&o)
	if err != nil {
		k.finish(ErrReleased)
		return nil, err
	}
	return k, nil
}

// awaited returns a BusyError if goroutines of this Locker wait for the name, else nil.
func (l *Locker) awaited(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[name]; q != nil && q.head != nil {
		return &BusyError{Name: name, Store: l.where, Holders: q.holders}
	}
	return nil
}

// useFastPath reports whether to make a request before queueing: a free lock then
// costs no goroutine. Where a request costs a round trip, it is made only if the
// store recommends it and the name was not found held lately.
func (l *Locker) useFastPath(name string) bool {
	if g := l.guarantees.Load(); g.Scope == driver.ScopeNetwork && !(g.TryFirst && !l.contention.expected(name)) {
		return false
	}
	if l.queueCount.Load() == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues[name] == nil
}

// contention remembers, roughly and in a fixed space, which names were found contended, for the next
// few acquisitions of each.
type contention [256]atomic.Int32

// skipFastPath is the number of acquisitions that skip the fast path after one that found the name
// held, because it would probably fail. A free name costs one request in either way.
const skipFastPath = 32

var contentionSeed = maphash.MakeSeed()

func (c *contention) of(name string) *atomic.Int32 {
	return &c[maphash.String(contentionSeed, name)%uint64(len(c))]
}

// found records that the name is contended, for the next n acquisitions.
func (c *contention) found(name string, n int32) { c.of(name).Store(n) }

// expected reports whether the name was found contended lately, and counts the call.
func (c *contention) expected(name string) bool {
	n := c.of(name)
	if n.Load() <= 0 {
		return false
	}
	n.Add(-1)
	return true
}
