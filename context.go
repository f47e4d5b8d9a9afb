package holdfast

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/bound"
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

// find returns the innermost lock of the name that ctx carries and that has not ended,
// or nil. A nil Locker matches any.
func find(ctx context.Context, l *Locker, name string) *Lock {
	var found *Lock
	locksIn(ctx, func(k *Lock) bool {
		if k.holder.lease.req.Name == name && (l == nil || k.holder.lease.l == l) && k.held() {
			found = k
		}
		return found == nil
	})
	return found
}

// Token returns the fencing token of the lock of that name which ctx carries, for the
// resource that checks it. Token returns 0 if there is no such lock, or if it has
// ended: no grant has token 0, and every guard refuses it. The end of the caller's
// context alone does not end the lock; see [Drain].
func Token(ctx context.Context, name string) uint64 {
	if k := find(ctx, nil, name); k != nil {
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

// valuesOf is a context that never ends, with the values of another context.
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

// waiting returns the context of a wait: it ends with ctx, or with that of WaitContext.
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
	return &waitContext{inner, ctx, s.waitCtx}, func() {
		stop()
		cancel(nil)
	}
}

// waitContext is the context of a wait that either of two contexts ends.
type waitContext struct {
	context.Context
	caller, wait context.Context
}

func (c *waitContext) Err() error {
	err := c.Context.Err()
	if err != nil && c.caller.Err() == nil && c.wait.Err() != nil {
		return c.wait.Err()
	}
	return err
}

// bounded is the context of one request to a store. It adds a deadline to another context,
// or to the values of another context. The store answers most requests before anything waits
// for the end of their context. So the timer of the deadline starts only when the store calls
// Done, and costs nothing until then. A store on this machine mostly answers at once: for it
// the time to the deadline, too, starts only with that call.
type bounded struct {
	context.Context // the parent
	// limit is the time from the start of the timer to the deadline. If dated is set, it is
	// the time from loaded to the deadline.
	limit           time.Duration
	dated, detached bool

	timed atomic.Pointer[timed] // set when the timer starts
}

var _ bound.Context = (*bounded)(nil)

// timed is a context with a running timer.
type timed struct {
	context.Context
	stop context.CancelFunc
}

// loaded is when the program started.
var loaded = time.Now()

// answered is the state of a bounded whose request was answered before anything waited
// for the end of the context.
var answered = func() *timed {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	return &timed{ctx, stop}
}()

// bound makes b the context of a request with the timeout d.
func (l *Locker) bound(b *bounded, parent context.Context, detached bool, d time.Duration) context.Context {
	b.Context, b.detached, b.limit = parent, detached, d
	if g := l.guarantees.Load(); g == nil || g.Scope == driver.ScopeNetwork {
		b.limit, b.dated = time.Since(loaded)+d, true
	}
	return b
}

func (b *bounded) start() *timed {
	if t := b.timed.Load(); t != nil {
		return t
	}
	parent := b.Context
	if b.detached {
		parent = context.WithoutCancel(parent)
	}
	t := &timed{}
	if b.dated {
		t.Context, t.stop = context.WithDeadline(parent, loaded.Add(b.limit))
	} else {
		t.Context, t.stop = context.WithTimeout(parent, b.limit)
	}
	if !b.timed.CompareAndSwap(nil, t) {
		t.stop()
		return b.timed.Load()
	}
	return t
}

// end stops the timer after the answer to the request. A lease keeps b for as long as it
// is held, so end removes a context that has just ended from b.
func (b *bounded) end() {
	if b.timed.CompareAndSwap(nil, answered) {
		return
	}
	t := b.timed.Load()
	t.stop()
	if t.Err() == context.Canceled {
		b.timed.Store(answered)
	}
}

// Caller returns the context whose end also ends b, like the deadline; see [bound.Context].
func (b *bounded) Caller() context.Context {
	if b.detached {
		return context.Background()
	}
	return b.Context
}

func (b *bounded) Deadline() (time.Time, bool) {
	if !b.dated {
		return b.start().Deadline()
	}
	at := loaded.Add(b.limit)
	if end, dated := b.Caller().Deadline(); dated && end.Before(at) {
		at = end
	}
	return at, true
}

func (b *bounded) Done() <-chan struct{} { return b.start().Done() }

func (b *bounded) Err() error {
	t := b.timed.Load()
	if t == nil && b.dated && time.Since(loaded) >= b.limit {
		t = b.start()
	}
	if t != nil {
		return t.Err()
	}
	return b.Caller().Err()
}

// Value returns the value of the context with the timer, once that runs. So a context that
// derives from b ends with the timer, and with its cause.
func (b *bounded) Value(key any) any {
	if t := b.timed.Load(); t != nil && t != answered {
		return t.Value(key)
	}
	return b.Context.Value(key)
}
