package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ringScale is the binary logarithm of the size of rueidis' ring: the number of unanswered
// requests that a connection holds at most. A further request waits inside rueidis and ignores
// its context.
const ringScale = 8

const (
	// maxDirect limits the requests that run on the goroutines of their callers, and
	// maxDetached those that run on goroutines of their own. The rest of the ring stays free
	// for subscriptions and for the keepalive commands of rueidis.
	maxDirect   = 128
	maxDetached = 64
	// abandonedFor is how long an abandoned request counts as part of the ring. A server that
	// is silent for longer has lost its connections.
	abandonedFor = keepAliveIdle + 2*silentTimeout
	// unstableFor is how long all requests are detached after the client was created, a
	// connection was lost or not opened, or a request was abandoned. In that time the client may
	// open or lose further connections.
	unstableFor = time.Second
)

// inflight limits the requests inside rueidis, so that none of them waits there: a waiting
// request ignores its context.
//
// A direct request runs on the goroutine of its caller. Rueidis returns when the request's context
// ends, if the connection is open and the ring has space. The request first reserves that space: a
// mere check would race with other requests. A request that its caller abandons stays in the ring
// until the server answers or the connection ends. Rueidis reports neither, so the request counts
// until one of them is certain.
//
// All other requests are detached: each runs on a goroutine of its own, which waits for the answer
// even if the caller has returned. So the client counts each of them exactly.
type inflight struct {
	direct    atomic.Int32 // requests on their callers' goroutines, and abandoned ones
	abandoned atomic.Int32 // of direct, the abandoned ones
	detached  chan struct{}
	// unstableUntil is a time, in the microseconds of micros. Until then a request may find a
	// connection that is not open yet. Rueidis waits for that connection even after the
	// request's context has ended.
	unstableUntil atomic.Int64
}

func newInflight() *inflight {
	r := &inflight{detached: make(chan struct{}, maxDetached)}
	r.markUnstable()
	return r
}

func (r *inflight) markUnstable() {
	r.unstableUntil.Store(micros() + unstableFor.Microseconds())
}

// enter reserves space for a direct request, and reports in ok whether there was space. If so, the
// caller calls leave at the end. first reports whether no other direct request runs.
func (r *inflight) enter() (first, ok bool) {
	n := r.direct.Add(1)
	if n > maxDirect || micros() <= r.unstableUntil.Load() {
		r.direct.Add(-1)
		return false, false
	}
	return n-r.abandoned.Load() == 1, true
}

// leave ends a direct request. abandoned means that the caller did not wait for the answer.
func (r *inflight) leave(abandoned bool) {
	if !abandoned {
		r.direct.Add(-1)
		return
	}
	r.abandoned.Add(1)
	r.markUnstable() // what delayed the answer may also end the connection
	time.AfterFunc(abandonedFor, func() {
		r.abandoned.Add(-1)
		r.direct.Add(-1)
	})
}

// withoutDeadline hides the deadline of a context. With a deadline, and without other requests,
// rueidis writes and reads on the caller's goroutine and ignores a cancellation. At the deadline
// it closes the connection, which other requests share.
type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// runDirect runs a request, on the caller's goroutine if there is space, and returns when f
// returns or ctx ends.
func runDirect[T any](ctx context.Context, c *rueidisClient, f func(context.Context) (T, error)) (T, error) {
	if _, ok := c.inflight.enter(); !ok {
		return runDetached(ctx, c, f)
	}
	v, err := f(withoutDeadline{ctx})
	// v can contain errors while err is nil, so only ctx shows whether the answer may be missing.
	c.inflight.leave(ctx.Err() != nil)
	return v, err
}

// runDetached waits for space, runs a request on a goroutine of its own, and returns when f
// returns or ctx ends. The request continues after ctx has ended.
func runDetached[T any](ctx context.Context, c *rueidisClient, f func(context.Context) (T, error)) (T, error) {
	select {
	case c.inflight.detached <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, &NotSentError{ctx.Err()}
	}
	end := func() { <-c.inflight.detached }
	return runInBackground(ctx, c, end, func() (T, error) {
		// With a context that can be cancelled rueidis uses its own goroutines to write and read.
		lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		return f(lasting)
	})
}

// runInBackground runs f on a goroutine of its own, and returns when f returns or ctx ends.
// When f has returned, or cannot start, it calls end. Close waits for f.
func runInBackground[T any](ctx context.Context, c *rueidisClient, end func(), f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	done := make(chan result, 1)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		end()
		return none, errClientClosed
	}
	c.calls.Go(func() {
		defer end()
		v, err := f()
		done <- result{v, err}
	})
	c.mu.Unlock()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

var errClientClosed = &NotSentError{errors.New("the client is closed")}
