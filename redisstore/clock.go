package redisstore

import (
	"sync/atomic"
	"time"
)

// window is for how long after it was sent a request that creates something may
// be applied. The server refuses it later, so an Undo need not remember a
// request for longer.
const window = 10 * time.Second

// clock estimates the server's time, from what it answers. Nothing is decided by
// the estimate but when a request becomes too old, which the server does.
type clock struct {
	offset atomic.Int64 // the server's microseconds less ours
	known  atomic.Bool
}

var started = time.Now()

// micros is our own monotonic time.
func micros() int64 { return time.Since(started).Microseconds() }

// learn takes what the server answered to a request that was sent at a moment:
// the estimate is late by the answer's way at most.
func (c *clock) learn(sent, server int64) {
	c.offset.Store(server - sent)
	c.known.Store(true)
}

// now is the server's time, about.
func (c *clock) now() int64 {
	return micros() + c.offset.Load() // mutation: redis-clock
}

// deadline is when a request that is sent now becomes too old.
func (c *clock) deadline() int64 { return c.now() + window.Microseconds() }
