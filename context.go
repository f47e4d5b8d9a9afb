package holdfast

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/deadline"
)

// lockContext is the context of a held lock. It adds two things to an ordinary
// cancellable context. Err reads the clock itself, because a process that was paused
// runs on before its timers fire. Value leads to the lock.
//
// A context derived from it ends with it, but does not read the clock. Code that must not
// act without the lock checks the lock's own context, or calls Token, right before it acts.
type lockContext struct {
	context.Context
	lock *Lock
}

type lockKey struct{}

func (c *lockContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	for _, k := range c.lock.under {
		k.check() // the end of an outer lock ends c
	}
	c.lock.check()
	return c.Context.Err()
}

func (c *lockContext) Value(key any) any {
	if key == (lockKey{}) {
		return c.lock
	}
	return c.Context.Value(key)
}

// locksIn yields the locks that a context carries, innermost first.
func locksIn(ctx context.Context, yield func(*Lock) bool) {
	for ctx != nil {
		k, _ := ctx.Value(lockKey{}).(*Lock)
		if k == nil || !yield(k) {
			return
		}
		ctx = k.parent
	}
}

// find returns the innermost lock of the name that ctx carries and that fits, or nil.
func find(ctx context.Context, name string, fits func(*Lock) bool) *Lock {
	var found *Lock
	locksIn(ctx, func(k *Lock) bool {
		if k.holder.lease.req.Name == name && fits(k) {
			found = k
		}
		return found == nil
	})
	return found
}

// carriedLock returns the innermost lock of the name that ctx carries, or nil if there is none, or if that lock has ended.
// An outer lock of the name may be of another store: its token proves nothing about the inner lock. If l is nil, the
// lock may belong to any Locker.
func carriedLock(ctx context.Context, l *Locker, name string) *Lock {
	k := find(ctx, name, func(k *Lock) bool { return l == nil || k.holder.lease.l == l })
	if k == nil || !k.held() {
		return nil
	}
	return k
}

// Token returns the fencing token of the lock of that name which ctx carries, for the
// resource that checks it. Token returns 0 if there is no such lock, or if it has
// ended: no grant has token 0, and every guard refuses it with fence.ErrStale. The token of a
// lost lock would pass a guard until the next holder has written. The end of the caller's
// context alone does not end the lock; see [Drain].
//
// If ctx carries several locks of that name, the innermost one decides, also after its end. A program
// that takes one name with several Lockers calls [Locker.Token] of the Locker whose tokens the resource
// compares: the tokens of two stores have no common order.
func Token(ctx context.Context, name string) uint64 { return carriedToken(ctx, nil, name) }

// Token returns what the function [Token] returns, for the locks of l.
func (l *Locker) Token(ctx context.Context, name string) uint64 { return carriedToken(ctx, l, name) }

func carriedToken(ctx context.Context, l *Locker, name string) uint64 {
	if k := carriedLock(ctx, l, name); k != nil {
		return k.Token()
	}
	return 0
}

// NewOwner returns a context that carries no lock, for a goroutine with an identity of
// its own. Locking a name again with it waits, instead of returning ErrSelfDeadlock or
// joining. The context still ends when the locks of ctx end.
func NewOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, lockKey{}, (*Lock)(nil))
}

// drainContext is the context that DrainContext returns.
type drainContext struct {
	lockContext
	end context.CancelCauseFunc
}

// DrainContext returns a context for work that has to be finished after the caller's
// context has ended, such as a last write at SIGTERM. It has the values of ctx, and it
// ends when the innermost lock that ctx carries ends: by Unlock, by a loss, by MaxHold,
// or when the lock is no longer renewed (see [Drain]). The end of the context that
// was passed to Lock or Do does not end it. Without a lock in ctx it returns ctx.
//
//	err := locker.Do(ctx, "order/4711", func(ctx context.Context) error {
//		for item := range items {
//			if ctx.Err() != nil { // SIGTERM, or the lock is lost
//				break
//			}
//			process(ctx, item)
//		}
//		return saveProgress(holdfast.DrainContext(ctx))
//	})
func DrainContext(ctx context.Context) context.Context {
	k, _ := ctx.Value(lockKey{}).(*Lock)
	if k == nil {
		return ctx
	}
	return &valuesOf{k.draining(), context.WithoutCancel(ctx)}
}

// valuesOf is a context with the values of another one.
type valuesOf struct {
	context.Context
	values context.Context
}

func (c *valuesOf) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// draining returns the context that ends with the lock, and with the locks outside it.
func (k *Lock) draining() *drainContext {
	if d := k.drain.Load(); d != nil {
		return d
	}
	// The context derives from the outer lock's context. So it has ended when the method that
	// ends the outer lock returns.
	parent := context.WithoutCancel(k.parent)
	if outer, _ := k.parent.Value(lockKey{}).(*Lock); outer != nil {
		parent = outer.draining()
	}
	inner, cancel := context.WithCancelCause(parent)
	d := &drainContext{lockContext: lockContext{inner, k}, end: cancel}
	if !k.drain.CompareAndSwap(nil, d) {
		d.end(nil)
		return k.drain.Load()
	}
	if end := k.ended.Load(); end != nil { // the lock ended meanwhile
		d.end(*end)
	}
	return d
}

// waiting returns the context of a wait. It ends with ctx, or with the context of WaitContext.
func (s *settings) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.waitCtx == nil {
		return ctx, func() {}
	}
	inner, cancel := context.WithCancelCause(ctx)
	end := func() { cancel(context.Cause(s.waitCtx)) }
	stop := context.AfterFunc(s.waitCtx, end)
	if s.waitCtx.Err() != nil {
		end()
	}
	return &waitContext{Context: inner, caller: ctx, wait: s.waitCtx}, func() {
		stop()
		cancel(nil)
	}
}

// waitContext is the context of a wait. It ends with either of two contexts.
type waitContext struct {
	context.Context
	caller, wait context.Context

	ended sync.Once // decides err, which does not change if the other context ends later
	err   error
}

func (c *waitContext) Err() error {
	err := c.Context.Err()
	if err == nil {
		return nil
	}
	c.ended.Do(func() {
		if c.err = err; c.caller.Err() == nil && c.wait.Err() != nil {
			c.err = c.wait.Err()
		}
	})
	return c.err
}

// requestContext is the context of one request to a store. It adds a deadline to another
// context, or to the values of another context. A store answers most requests before anything
// waits for the end of their context. So the timer of the deadline starts only when the store
// calls Done, and costs nothing until then. For a store on this machine, the time to the
// deadline starts with the timer, too, because such a store answers most requests at once.
type requestContext struct {
	context.Context // the parent
	// limit is the time from programStart to the deadline if fixed is set. Otherwise it is the
	// time from the start of the timer to the deadline.
	limit           time.Duration
	fixed, detached bool

	timer atomic.Pointer[timerContext] // set when the timer starts
}

var _ deadline.Context = (*requestContext)(nil)

// timerContext is a context with a running timer.
type timerContext struct {
	context.Context
	stop context.CancelFunc
}

// programStart is when the program started.
var programStart = time.Now()

// noTimer replaces the timer of a request that was answered before anything waited for the
// end of its context.
var noTimer = func() *timerContext {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	return &timerContext{ctx, stop}
}()

// withTimeout makes b the context of a request with the timeout d. If detached is set, b has
// only the values of parent.
func (l *Locker) withTimeout(b *requestContext, parent context.Context, detached bool, d time.Duration) context.Context {
	b.Context, b.detached, b.limit = parent, detached, d
	if g := l.guarantees.Load(); g == nil || g.Scope == driver.ScopeNetwork {
		b.limit, b.fixed = time.Since(programStart)+d, true
	}
	return b
}

// start starts the timer, unless it runs.
func (b *requestContext) start() *timerContext {
	if t := b.timer.Load(); t != nil {
		return t
	}
	parent := b.Context
	if b.detached {
		parent = context.WithoutCancel(parent)
	}
	t := &timerContext{}
	if b.fixed {
		t.Context, t.stop = context.WithDeadline(parent, programStart.Add(b.limit))
	} else {
		t.Context, t.stop = context.WithTimeout(parent, b.limit)
	}
	if !b.timer.CompareAndSwap(nil, t) {
		t.stop()
		return b.timer.Load()
	}
	return t
}

// end stops the timer after the answer to the request. A lease keeps b for as long as it
// is held, so end removes the timer's context from b.
func (b *requestContext) end() {
	if b.timer.CompareAndSwap(nil, noTimer) {
		return
	}
	t := b.timer.Load()
	t.stop()
	if t.Err() == context.Canceled {
		b.timer.Store(noTimer)
	}
}

// Caller returns the context whose end also ends b, like the deadline; see [deadline.Context].
func (b *requestContext) Caller() context.Context {
	if b.detached {
		return context.Background()
	}
	return b.Context
}

func (b *requestContext) Deadline() (time.Time, bool) {
	if !b.fixed {
		return b.start().Deadline()
	}
	at := programStart.Add(b.limit)
	if end, ok := b.Caller().Deadline(); ok && end.Before(at) {
		at = end
	}
	return at, true
}

func (b *requestContext) Done() <-chan struct{} { return b.start().Done() }

func (b *requestContext) Err() error {
	t := b.timer.Load()
	if t == nil && b.fixed && time.Since(programStart) >= b.limit {
		t = b.start()
	}
	if t != nil {
		return t.Err()
	}
	return b.Caller().Err()
}

// Value returns the value of the timer's context, once the timer runs. So a context that
// derives from b ends with the timer, and with its cause. The cause of the parent's end is not that of a detached context.
func (b *requestContext) Value(key any) any {
	if t := b.timer.Load(); t != nil && t != noTimer {
		return t.Value(key)
	}
	if b.detached {
		return context.WithoutCancel(b.Context).Value(key)
	}
	return b.Context.Value(key)
}
