// Package calls admits the calls and the background tasks of a store until the store is closed, and lets
// Close wait for them. A task can make a value that several calls wait for.
package calls

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Calls are the calls and the background tasks of a store. New makes them.
type Calls struct {
	// Ctx ends with Cancel.
	Ctx    context.Context
	Cancel context.CancelFunc
	// Running counts the calls under way. Close waits for them first, because they start tasks.
	Running sync.WaitGroup
	// Tasks counts the background tasks. A call or a task may start one directly. Otherwise Go starts it.
	Tasks sync.WaitGroup

	mu      sync.Mutex // guards the changes of stopped
	stopped atomic.Bool
}

// New returns the Calls of a store that is open.
func New() *Calls {
	c := &Calls{}
	c.Ctx, c.Cancel = context.WithCancel(context.Background())
	return c
}

// ErrClosed means that the store is closed.
var ErrClosed = driver.Errorf(driver.CodeClosed, "the store is closed")

// Enter begins a call. The caller ends it with Leave. After Stop it returns ErrClosed.
func (c *Calls) Enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Stopped() {
		return ErrClosed
	}
	c.Running.Add(1)
	return nil
}

// Leave ends a call.
func (c *Calls) Leave() { c.Running.Done() }

// Bind returns a context that also ends with Ctx. The caller releases it with end.
func (c *Calls) Bind(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.Ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Call begins a call whose context also ends with Ctx. The caller ends it with end.
func (c *Calls) Call(ctx context.Context) (_ context.Context, end func(), _ error) {
	if err := c.Enter(); err != nil {
		return ctx, nil, err
	}
	ctx, unbind := c.Bind(ctx)
	return ctx, func() { unbind(); c.Leave() }, nil
}

// Go runs f in the background. After Stop it does not, and returns false.
func (c *Calls) Go(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Stopped() {
		return false
	}
	c.Tasks.Go(f)
	return true
}

// Stop admits no more calls and tasks. It returns false if they were stopped before.
func (c *Calls) Stop() (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.stopped.Swap(true)
}

// Stopped reports whether Stop was called.
func (c *Calls) Stopped() bool { return c.stopped.Load() }

// Ready returns the error of a call for a value that cannot begin, nil if it can: see driver.Values.
func (c *Calls) Ready(ctx context.Context, key string, data []byte) error {
	if err := driver.CheckValue(key, data); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, err) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	if c.Stopped() {
		return ErrClosed
	}
	return nil
}

// Withdraw calls undo, which removes what the store has of a request that has failed. It returns the error of the
// request: why, or one of CodeUnknown if undo fails. If undo reports that the store is closed, that is the error. undo has
// a context of its own, since that of the caller may have ended.
func Withdraw(ctx context.Context, timeout time.Duration, why error, undo func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	switch err := undo(ctx); {
	case err == nil:
		return why
	case driver.CodeOf(err) == driver.CodeClosed:
		return err
	default:
		return driver.Errorf(driver.CodeUnknown, "%w; the request could not be withdrawn: %w", why, err)
	}
}

// Wait waits until g is done or ctx ends.
func Wait(ctx context.Context, g *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
