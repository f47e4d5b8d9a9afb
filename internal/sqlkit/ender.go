package sqlkit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/deadline"
)

// ender ends a connection when the context of its present statement ends. For the deadline of a
// [deadline.Context] it uses one alarm for all statements of the connection. So a statement that
// is answered in time costs no timer and no context of its own.
//
// One goroutine at a time calls begin and stop.
type ender struct {
	end func() // is called on a goroutine of its own

	mu    sync.Mutex
	alarm alarm     // calls expired
	at    time.Time // the deadline of the present statement, zero if it has none
	ended bool      // end was called for the present statement

	unwatch func() bool    // ends the watch of the present statement's context, or nil
	running sync.WaitGroup // calls of end at the end of a context
}

// begin calls end when ctx ends, until stop.
func (e *ender) begin(ctx context.Context) {
	if request, ok := ctx.(deadline.Context); ok {
		ctx = request.Caller()
		at, hasDeadline := request.Deadline()
		callers, callerHasDeadline := ctx.Deadline()
		// At its own deadline the caller's context ends by itself.
		if hasDeadline && (!callerHasDeadline || at.Before(callers)) {
			e.arm(at)
		}
	}
	if ctx.Done() == nil {
		return
	}
	e.running.Add(1)
	e.unwatch = context.AfterFunc(ctx, func() {
		defer e.running.Done()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ended = true
		e.end()
	})
}

// arm sets the alarm for the deadline.
func (e *ender) arm(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = at
	e.alarm.set(at, e.expired)
}

// expired is called by the alarm, possibly for the deadline of a statement that has ended.
func (e *ender) expired() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alarm.reset()
	switch {
	case e.at.IsZero():
	case time.Now().Before(e.at):
		e.alarm.set(e.at, e.expired)
	default:
		e.ended = true
		e.end()
	}
}

// stop ends what begin has begun. After it has returned, end no longer runs, and the
// connection may have another user. stop returns the error of a statement whose connection
// has ended, also if the answer came at that moment: the server ends the session with the connection.
func (e *ender) stop() error {
	e.mu.Lock()
	e.at = time.Time{}
	e.mu.Unlock()
	if e.unwatch != nil {
		if e.unwatch() {
			e.running.Done()
		}
		e.running.Wait()
		e.unwatch = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		return nil
	}
	e.ended = false
	return &partlyError{fmt.Errorf("the answer came too late: %w", context.DeadlineExceeded)}
}
