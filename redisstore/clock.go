package redisstore

import (
	"sync/atomic"
	"time"
)

// window is how long after its sending the server accepts a request that creates an entry or a
// grant. It refuses a later one, so an Undo need not keep its tombstone for longer.
const window = 10 * time.Second

// clock estimates the server's time from its answers. The estimate is used only for the deadline
// of a request, which the server checks.
type clock struct {
	offset atomic.Int64 // the server's microseconds minus micros
	known  atomic.Bool
}

var started = time.Now()

// micros returns the monotonic time of this process, in microseconds.
func micros() int64 { return time.Since(started).Microseconds() }

// learn records the server's time in the answer to a request that was sent at sent. The estimate
// is behind by at most the time that the answer took.
func (c *clock) learn(sent, server int64) {
	c.offset.Store(server - sent)
	c.known.Store(true)
}

// now returns the estimate of the server's time.
func (c *clock) now() int64 {
	return micros() + c.offset.Load() // mutation: redis-clock
}

// deadline returns the time after which the server refuses a request that is sent now.
func (c *clock) deadline() int64 { return c.now() + window.Microseconds() }
