package holdfast

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// lockContext is the context of a held lock. Over an ordinary cancellable
// context it adds two things: Err looks at the clock itself, since a process
// that was paused runs on before its timers do, and Value leads to the lock.
//
// A context derived from it is cancelled with it, but derived contexts do not
// look at the clock: code that must know asks the lock's own context, or takes
// Token, right before it acts.
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
		k.hold.checkTrust() // its end is this one's
	}
	c.lock.hold.checkTrust()
	return c.Context.Err()
}

func (c *lockContext) Value(key any) any {
	if key == (lockKey{}) {
		return c.lock
	}
	return c.Context.Value(key)
}

// holds walks over the locks that a context carries, innermost first.
func holds(ctx context.Context, yield func(*Lock) bool) {
	for ctx != nil {
		k, _ := ctx.Value(lockKey{}).(*Lock)
		if k == nil || !yield(k) {
			return
		}
		ctx = k.parent
	}
}

// find returns the innermost live lock of the name that ctx carries. A nil
// Locker matches any.
func find(ctx context.Context, l *Locker, name string) *Lock {
	var found *Lock
	holds(ctx, func(k *Lock) bool {
		if k.hold.req.Name == name && (l == nil || k.hold.l == l) && k.live() {
			found = k
		}
		return found == nil
	})
	return found
}

// Token is the fencing token of the lock of that name which ctx carries, for the
// resource that checks it. It is 0 when there is none, or when it is no longer
// live: no grant has token 0, and every guard refuses it.
func Token(ctx context.Context, name string) uint64 {
	if k := find(ctx, nil, name); k != nil {
		return k.Token()
	}
	return 0
}

// NewOwner gives a goroutine an identity of its own: the context it returns
// carries no lock, so locking a name again waits instead of answering
// ErrSelfDeadlock or joining. It still ends when the locks of ctx end.
func NewOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, lockKey{}, (*Lock)(nil))
}

// bounded is the context of one request to a store: a deadline over another
// context, or over its values alone. For a store on this machine, which mostly
// answers at once, the deadline's timer starts when somebody waits for it, so
// that it costs nothing.
type bounded struct {
	context.Context // the parent
	detached        bool
	within          time.Duration

	timed atomic.Pointer[timed] // once somebody waits
	mu    sync.Mutex            // for starting it
}

// timed is a context with a running timer.
type timed struct {
	context.Context
	stop context.CancelFunc
}

// bound makes b the context of a request of at most d.
func (l *Locker) bound(b *bounded, parent context.Context, detached bool, d time.Duration) context.Context {
	b.Context, b.detached, b.within = parent, detached, d
	if g := l.guarantees.Load(); g != nil && g.Scope != driver.ScopeNetwork {
		return b
	}
	return b.start().Context
}

func (b *bounded) start() *timed {
	if t := b.timed.Load(); t != nil {
		return t
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.timed.Load(); t != nil {
		return t
	}
	parent := b.Context
	if b.detached {
		parent = context.WithoutCancel(parent)
	}
	t := &timed{}
	t.Context, t.stop = context.WithTimeout(parent, b.within)
	b.timed.Store(t)
	return t
}

// end gives back what the context took; the request has been answered.
func (b *bounded) end() {
	if t := b.timed.Load(); t != nil {
		t.stop()
	}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.start().Deadline() }
func (b *bounded) Done() <-chan struct{}       { return b.start().Done() }

func (b *bounded) Err() error {
	if t := b.timed.Load(); t != nil {
		return t.Err()
	}
	if b.detached {
		return nil
	}
	return b.Context.Err()
}
