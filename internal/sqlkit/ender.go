package sqlkit

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/bound"
)

// Ender ends a connection when the context of its present statement ends. For the deadline
// of a [bound.Context] it uses one timer for all statements of the connection, so that a
// statement that is answered in time costs no timer and no context of its own.
//
// One goroutine at a time calls Begin and Stop.
type Ender struct {
	end func()

	mu    sync.Mutex
	timer *time.Timer
	at    time.Time // the deadline of the present statement, zero if it has none

	stop   func() bool // ends the watch of the present statement's context, or nil
	ending sync.WaitGroup
}

// NewEnder makes an Ender. It calls end on a goroutine of its own.
func NewEnder(end func()) *Ender { return &Ender{end: end} }

// Begin calls end when ctx ends, until Stop.
func (e *Ender) Begin(ctx context.Context) {
	if b, ok := ctx.(bound.Context); ok {
		ctx = b.Caller()
		at, dated := b.Deadline()
		// At its own deadline the caller's context ends by itself.
		if end, callers := ctx.Deadline(); dated && !(callers && !at.Before(end)) {
			e.arm(at)
		}
	}
	if ctx.Done() == nil {
		return
	}
	e.ending.Add(1)
	e.stop = context.AfterFunc(ctx, func() {
		defer e.ending.Done()
		e.end()
	})
}

func (e *Ender) arm(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = at
	if e.timer == nil {
		e.timer = time.AfterFunc(time.Until(at), e.expired)
	} else {
		e.timer.Reset(time.Until(at))
	}
}

// expired is called by the timer, possibly late: the deadline may be that of a statement
// that has ended.
func (e *Ender) expired() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.at.IsZero() && !time.Now().Before(e.at) {
		e.end()
	}
}

// Stop ends what Begin has begun. After it has returned, end no longer runs, and the
// connection may have another user.
func (e *Ender) Stop() {
	e.mu.Lock()
	if !e.at.IsZero() {
		e.at = time.Time{}
		e.timer.Stop()
	}
	e.mu.Unlock()
	if e.stop == nil {
		return
	}
	if e.stop() {
		e.ending.Done()
	}
	e.ending.Wait()
	e.stop = nil
}
