package holdfast

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// background counts what Close waits for: calls at the store, releases and undos in
// the background, lingering leases, events on their way to a hook.
type background struct {
	n       atomic.Int64
	awaited atomic.Bool // a Close waits for n to reach 0
	mu      sync.Mutex
	idle    chan struct{} // made by Close, closed when n reaches 0
}

func (b *background) begin() { b.n.Add(1) }

func (b *background) end() {
	if b.n.Add(-1) == 0 && b.awaited.Load() {
		b.mu.Lock()
		b.wake()
		b.mu.Unlock()
	}
}

// wake wakes Close if nothing is under way. mu is held.
func (b *background) wake() {
	if b.n.Load() == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
		b.awaited.Store(false)
	}
}

// run starts work on a goroutine of its own.
func (b *background) run(work func()) {
	b.begin()
	go func() {
		defer b.end()
		work()
	}()
}

// wait blocks until nothing is under way.
func (b *background) wait(ctx context.Context) error {
	b.mu.Lock()
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.awaited.Store(true)
	b.wake() // after awaited is set: if end has not seen awaited, wake sees n
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Delays between two polls of a store that cannot notify, and between two requests
// that failed.
const (
	pollFirst, pollMax   = 5 * time.Millisecond, 500 * time.Millisecond
	retryFirst, retryMax = 20 * time.Millisecond, 2 * time.Second
)

// retry counts the failures of a request that is repeated. The zero retry has none.
type retry struct {
	failures int
	backoff  backoff.Backoff
}

// delay counts one more failure and returns how long to wait before the next
// request.
func (r *retry) delay() time.Duration {
	r.failures++
	r.backoff.First, r.backoff.Max = retryFirst, retryMax
	return r.backoff.Next()
}

func (r *retry) reset() { *r = retry{} }

// task is work that the store must still do for a request. No caller waits for it.
type task struct {
	run     func(context.Context) error // nil when it is done
	failed  func(error)                 // called after each failed attempt
	timeout time.Duration               // of the first attempt; it doubles with each failure
	ttl     time.Duration
}

const (
	// expiredAfter is the number of TTLs after which a lease or queue entry without renewal has
	// expired. It leaves time for a request that was still on its way to the store.
	expiredAfter = 4
	// closeTimeout is the least time for which Close waits for a store.
	closeTimeout = 30 * time.Second
	// closeLeast is how long Close continues when its context has ended.
	closeLeast = time.Second
	// attemptMax limits the timeout of a task's later attempts, unless that of the first one is
	// longer.
	attemptMax = 5 * time.Second
)

// doLater runs a task on a goroutine of its own, and repeats it until it is done. A task
// that hangs or fails delays no other task. It delays Close for a limited time: after that
// the Locker counts it as unsettled. No caller waits for an attempt, so each attempt gets
// more time than the one before. So a task also succeeds if it needs a new connection to a
// busy server.
func (l *Locker) doLater(t *task) {
	l.background.begin()
	go func() {
		end := l.background.end
		defer func() { end() }()
		unsettled := false
		for r := (retry{}); ; {
			timeout := max(t.timeout, min(t.timeout<<min(r.failures, 8), attemptMax))
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			err := t.run(ctx)
			cancel()
			if err == nil || l.store.Classify(err) == driver.CodeClosed {
				return
			}
			if !unsettled {
				t.failed(err)
			}
			if !unsettled && l.ctx.Err() != nil && time.Since(l.closedAt) > max(expiredAfter*t.ttl, closeTimeout) {
				unsettled = true
				l.unsettled.Add(1)
				end = func() { l.unsettled.Add(-1) }
				l.background.end()
			}
			time.Sleep(r.delay())
		}
	}()
}

// undoLater rolls back a request whose outcome is unknown, so that nothing of it stands or can
// still appear. It uses a context of its own, and repeats the undo until the store has
// confirmed it. If leases and queue entries expire by themselves, the task also ends after
// expiredAfter TTLs and the store's granularity.
func (l *Locker) undoLater(x *lease) {
	began := time.Now()
	guarantees := l.guarantees.Load()
	h := x.holder
	l.doLater(&task{
		run: func(ctx context.Context) error {
			err := l.store.Undo(ctx, x.req) // mutation: undo
			if guarantees.LeftoversExpire && time.Since(began) > expiredAfter*x.req.TTL+guarantees.Granularity {
				return nil
			}
			return err
		},
		timeout: l.requestTimeout(x.req.TTL), ttl: x.req.TTL,
		failed: func(err error) {
			if l.cfg.hooks != nil {
				e := l.describe(EventUndoFailed, x.req.Name, h.set)
				e.Err = err
				l.emitLater(h.ctx, e)
			}
		},
	})
}
