package sqlkit

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// calls admits the calls of an engine until the engine is closed. Close waits for tasks:
// the calls and the background tasks.
type calls struct {
	ctx    context.Context // ends with the engine
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// enter begins a call. The caller ends it with tasks.Done.
func (c *calls) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.tasks.Add(1)
	return nil
}

// bound returns a context that ends with the engine.
func (c *calls) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// call begins a call whose context ends with the engine. The caller ends it with end.
func (c *calls) call(ctx context.Context) (_ context.Context, end func(), _ error) {
	if err := c.enter(); err != nil {
		return ctx, nil, err
	}
	ctx, unbind := c.bound(ctx)
	return ctx, func() { unbind(); c.tasks.Done() }, nil
}

// Classify returns the code that every error of an engine carries.
func (*calls) Classify(err error) driver.Code { return driver.CodeOf(err) }
