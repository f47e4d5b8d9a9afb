package sqlkit

import (
	"context"
	"sync"
	"time"

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

// bind returns a context that ends with the engine.
func (c *calls) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// call begins a call whose context ends with the engine. The caller ends it with end.
func (c *calls) call(ctx context.Context) (_ context.Context, end func(), _ error) {
	if err := c.enter(); err != nil {
		return ctx, nil, err
	}
	ctx, unbind := c.bind(ctx)
	return ctx, func() { unbind(); c.tasks.Done() }, nil
}

// AnswerWithin is the timeout of a waiter's statements that do not wait for a lock. A
// waiter's context has no deadline, and a connection may have fallen silent.
const AnswerWithin = 10 * time.Second

// answerTimeout returns the context of a statement that does not wait for a lock: ctx, with the timeout
// AnswerWithin if the request waits.
func answerTimeout(ctx context.Context, waits bool) (context.Context, context.CancelFunc) {
	if !waits {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, AnswerWithin)
}

// Classify returns the code that every error of an engine carries.
func (*calls) Classify(err error) driver.Code { return driver.CodeOf(err) }
