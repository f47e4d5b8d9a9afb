package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ringScale is the logarithm of how many requests a connection of rueidis' has room
// for that are not answered. The next one waits for room, and minds no context.
const ringScale = 8

const (
	// directMost is how many requests at a time are made on their callers' goroutines,
	// and apartMost how many on goroutines of their own. Both together leave room in the
	// ring for subscriptions and for the client's own questions.
	directMost = 128
	apartMost  = 64
	// forgottenFor is how long a request that its caller has given up may have its place
	// in the ring: a server that is silent for so long has lost its connections.
	forgottenFor = askIdle + 2*silentBound
	// shakyFor is how long after a connection was made or lost others may follow.
	shakyFor = time.Second
)

// room keeps requests from waiting inside rueidis, where their contexts are not minded.
//
// A request that finds all well is made on its caller's goroutine. Rueidis minds its
// context then, for it has a connection, and room in the ring: that is reserved, not
// looked at, since others may come between the look and the request. A request that
// was given up keeps its place in the ring until it is answered or the connection
// ends, which nobody tells: it is counted until that is certain.
//
// All others are made on goroutines of their own, which go on until they are answered
// when their callers have left, and so need no estimate.
type room struct {
	direct atomic.Int32 // requests on their callers' goroutines, and those given up
	gone   atomic.Int32 // of these, those given up
	apart  chan struct{}
	// shaky is until when, by micros, a request may come upon a connection that is
	// being made, which rueidis waits for longer than the request's context lasts.
	shaky atomic.Int64
}

func newRoom() *room {
	r := &room{apart: make(chan struct{}, apartMost)}
	r.shake()
	return r
}

func (r *room) shake() { r.shaky.Store(micros() + shakyFor.Microseconds()) }

// enter reserves room for a request on the caller's goroutine, if there is any. leave
// follows. First tells that nobody else makes one now.
func (r *room) enter() (first, ok bool) {
	n := r.direct.Add(1)
	if n > directMost || micros() <= r.shaky.Load() {
		r.direct.Add(-1)
		return false, false
	}
	return n-r.gone.Load() == 1, true
}

// leave ends a request, which may have been given up before its answer.
func (r *room) leave(early bool) {
	if !early {
		r.direct.Add(-1)
		return
	}
	r.gone.Add(1)
	r.shake() // what made it late may end the connection
	time.AfterFunc(forgottenFor, func() {
		r.gone.Add(-1)
		r.direct.Add(-1)
	})
}

// undated hides a deadline: rueidis would write and read on the caller's goroutine
// while nobody else asks, and mind the deadline alone, to which it would give up a
// connection that others share.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// promptly makes a request, and returns when it does or when ctx ends.
func promptly[T any](ctx context.Context, c *rueidisClient, f func(context.Context) (T, error)) (T, error) {
	if _, ok := c.room.enter(); !ok {
		return apart(ctx, c, f)
	}
	v, err := f(undated{ctx})
	c.room.leave(ctx.Err() != nil)
	return v, err
}

// apart makes a request on a goroutine of its own, once there is room for it, and
// returns when it does or when ctx ends: the request then goes on by itself.
func apart[T any](ctx context.Context, c *rueidisClient, f func(context.Context) (T, error)) (T, error) {
	select {
	case c.room.apart <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, &NotSentError{ctx.Err()}
	}
	end := func() { <-c.room.apart }
	return aside(ctx, c, end, func() (T, error) {
		// One that could be cancelled: with others rueidis writes and reads by itself.
		lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		return f(lasting)
	})
}

// aside runs f on a goroutine of its own, and returns when it does or when ctx ends.
// When f has ended, or cannot begin, it calls end. Close waits for it.
func aside[T any](ctx context.Context, c *rueidisClient, end func(), f func() (T, error)) (T, error) {
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
