package server

import (
	"sync/atomic"
	"time"
)

// Window is how long after its sending the server accepts a request that creates an entry or a
// grant. It refuses a later one, so an Undo need not keep its tombstone for longer.
const Window = 10 * time.Second

// minLateLimit is the least lateLimit of a store.
const minLateLimit = 64

// Clock estimates the server's time from its answers. The estimate is used only for the deadline
// of a request, which the server checks.
type Clock struct {
	offset atomic.Int64 // the server's microseconds minus Micros
}

var started = time.Now()

// Micros returns the monotonic time of this process, in microseconds.
func Micros() int64 { return time.Since(started).Microseconds() }

// Learn records the server's time in the answer to a request that was sent at sent. The estimate
// is ahead by at most the time that the request took to the server.
func (c *Clock) Learn(sent, server int64) {
	c.offset.Store(server - sent)
}

// Now returns the estimate of the server's time.
func (c *Clock) Now() int64 {
	return Micros() + c.offset.Load() // mutation: redis-clock
}

// Deadline returns the time after which the server refuses a request that is sent now.
func (c *Clock) Deadline() int64 { return c.Now() + Window.Microseconds() }
