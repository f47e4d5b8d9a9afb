package holdfast

import (
	"context"
	"sync"
	"time"
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

// lazyDeadline is a context with a deadline whose timer starts when its channel
// is first asked for.
type lazyDeadline struct {
	context.Context // the parent
	at              time.Time

	mu    sync.Mutex
	timed context.Context
	stop  context.CancelFunc
}

func (c *lazyDeadline) Deadline() (time.Time, bool) {
	if at, ok := c.Context.Deadline(); ok && at.Before(c.at) {
		return at, true
	}
	return c.at, true
}

func (c *lazyDeadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.stop = context.WithDeadline(c.Context, c.at)
	}
	return c.timed.Done()
}

func (c *lazyDeadline) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed != nil {
		return c.timed.Err()
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(c.at) {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *lazyDeadline) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
}
