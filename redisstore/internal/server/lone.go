package server

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/deadline"
)

// lone is a connection for a caller that is alone. The caller's own goroutine sends the request and
// reads its answer. A gather needs another goroutine, and the switches to and from it take about a
// third of the time that the client needs for a lock. The end of a request's context closes the
// connection, which no other request uses.
type lone struct {
	client   *redis.Client // of this connection only
	busy     atomic.Bool
	outdated atomic.Bool              // the next request needs another connection
	conn     atomic.Pointer[net.Conn] // the latest one
	requests atomic.Int32             // since the last one that was not alone, at most loneAfter
	// end closes the connection when a request's context has ended, and then sends to ended.
	end   func()
	ended chan struct{}
}

const (
	// loneAfter is the number of requests, each of them alone, after which the client uses the
	// connection. Where callers are rarely alone, it would be one more connection to read and to write.
	loneAfter = 4
	// loneDialTimeout is short because the request waits. It then goes to the gather.
	loneDialTimeout = 250 * time.Millisecond
)

// newLone returns a lone for the server of a client with these options. It does not connect.
func newLone(o redis.Options) *lone {
	l := &lone{ended: make(chan struct{}, 1)}
	l.end = func() {
		l.close()
		l.ended <- struct{}{}
	}
	open := o.Dialer
	o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := open(ctx, network, address)
		if err == nil {
			l.conn.Store(&conn)
		}
		return conn, err
	}
	o.DialTimeout, o.ContextTimeoutEnabled = loneDialTimeout, true
	l.client = redis.NewClient(&o)
	return l
}

// loneContext is the context of a request on the connection. go-redis keeps the deadline without a
// timer.
type loneContext struct {
	context.Context // its caller's
	until           time.Time
}

func (c loneContext) Deadline() (time.Time, bool) { return c.until, true }

// do sends a request if it is alone and the last ones were. done reports whether it did. An error means
// that the outcome is unknown; otherwise the command has its answer or its error.
func (l *lone) do(ctx context.Context, cmd once, alone bool) (done bool, err error) {
	if !alone {
		l.requests.Store(0)
		return false, nil
	}
	if l.requests.Load() < loneAfter && l.requests.Add(1) < loneAfter || !l.busy.CompareAndSwap(false, true) {
		return false, nil
	}
	if l.outdated.Swap(false) {
		l.close()
	}
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(silentTimeout)
	}
	caller := deadline.Cancellation(ctx)
	stop := func() bool { return true }
	if caller.Done() != nil {
		stop = context.AfterFunc(caller, l.end)
	}
	_ = l.client.Process(loneContext{caller, until}, cmd) // the command has the error
	if !stop() {
		<-l.ended // so that end closes no connection of the next request
	}
	l.busy.Store(false)
	if err = cmd.Err(); err == nil {
		return true, nil
	}
	if _, answered := errors.AsType[redis.Error](err); answered {
		return true, nil
	}
	if end := ctx.Err(); end != nil {
		return true, end
	}
	if time.Until(until) <= 0 {
		return true, context.DeadlineExceeded
	}
	if _, notSent := errors.AsType[*NotSentError](convert(err)); notSent {
		cmd.SetErr(nil)
		return false, nil
	}
	return true, nil
}

// close closes the connection. go-redis opens another one for the next request.
func (l *lone) close() {
	if conn := l.conn.Load(); conn != nil {
		closeNow(*conn)
	}
}
