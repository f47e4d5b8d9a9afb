package holdfast

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// activity counts what Close waits for: calls at the store, releases and undos
// in the background, lingering holds, events on their way to a hook.
type activity struct {
	n       atomic.Int64
	awaited atomic.Bool // somebody waits for n to reach 0
	mu      sync.Mutex
	idle    chan struct{} // made by who waits, closed when n reaches 0
}

func (a *activity) begin() { a.n.Add(1) }

func (a *activity) end() {
	if a.n.Add(-1) == 0 && a.awaited.Load() {
		a.mu.Lock()
		a.wake()
		a.mu.Unlock()
	}
}

// wake tells who waits, if nothing goes on; mu is held.
func (a *activity) wake() {
	if a.n.Load() == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
		a.awaited.Store(false)
	}
}

// run does a piece of work on a goroutine of its own.
func (a *activity) run(work func()) {
	a.begin()
	go func() {
		defer a.end()
		work()
	}()
}

// wait blocks until nothing is going on.
func (a *activity) wait(ctx context.Context) error {
	a.mu.Lock()
	if a.idle == nil {
		a.idle = make(chan struct{})
	}
	idle := a.idle
	a.awaited.Store(true)
	a.wake() // after awaited is set: an end that has not seen it is seen here
	a.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// chore is something the store must still do for a request that nobody waits
// for any more.
type chore struct {
	run    func(context.Context) error // nil when it is done
	failed func(error)
	within time.Duration // for one try
	ttl    time.Duration
}

// doLater does a chore on a goroutine of its own, again and again until it is
// done: one that hangs or fails delays no other, and a Close only for a while.
func (l *Locker) doLater(c *chore) {
	l.work.begin()
	go func() {
		end := l.work.end
		defer func() { end() }()
		for round, left := 0, false; ; round++ {
			ctx, cancel := context.WithTimeout(context.Background(), c.within)
			err := c.run(ctx)
			cancel()
			if err == nil || l.store.Classify(err) == driver.IsClosed {
				return
			}
			if !left {
				c.failed(err)
			}
			if !left && l.ctx.Err() != nil && time.Since(l.closedAt) > max(lapsed*c.ttl, closePatience) {
				left = true
				l.unsettled.Add(1)
				end = func() { l.unsettled.Add(-1) }
				l.work.end()
			}
			time.Sleep(backoff(round, retryFirst, retryMost))
		}
	}()
}

const (
	// lapsed is after how many TTLs nothing stands that nobody renews, whatever was on
	// its way.
	lapsed = 4
	// closePatience is how long Close waits for a store at least.
	closePatience = 30 * time.Second
)

// undoLater makes sure that nothing of a request whose outcome is unknown stands
// or can still appear: law 3. A context of its own, bounded per try, until the
// store has confirmed it. Where what the request may have left lapses, a few TTLs end
// the matter too.
func (l *Locker) undoLater(h *hold) {
	began := time.Now()
	lapses := l.guarantees.Load().Lapses
	l.doLater(&chore{
		run: func(ctx context.Context) error {
			err := l.store.Undo(ctx, h.req)
			if lapses && time.Since(began) > lapsed*h.req.TTL {
				return nil
			}
			return err
		},
		within: l.requestTimeout(h.req.TTL), ttl: h.req.TTL,
		failed: func(err error) {
			if l.cfg.hooks != nil {
				e := l.describe(EventUndoFailed, h.req.Name, &h.set)
				e.Err = err
				l.emitLater(h.ctx, e)
			}
		},
	})
}
