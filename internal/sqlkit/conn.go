package sqlkit

import (
	"net"
	"os"
	"sync"
	"time"
)

// Conn is a network connection that reports its end at once, and not only at the next Read: a goroutine reads ahead.
// There is one Read at a time.
type Conn struct {
	net.Conn
	gone chan struct{}

	mu       sync.Mutex
	changed  sync.Cond
	buf      []byte // read ahead and not yet returned
	kept     []byte // the space for a short answer
	err      error  // the error that ended the connection
	deadline time.Time
	alarm    alarm // calls expired
}

const (
	// readAtFirst is the size of a read ahead. It is small, since each held lock has a connection, to which usually only
	// the end comes. After a longer answer it is readAtMost.
	readAtFirst, readAtMost = 512, 4 << 10
	// maxReadAhead limits the bytes that are kept until the next Read.
	maxReadAhead = 1 << 20
)

// KeepAlive configures the probes by which TCP detects a server that is gone. Nothing else
// ends a client's wait in the queue of such a server.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// NewConn wraps a connection.
func NewConn(c net.Conn) *Conn {
	w := &Conn{Conn: c, gone: make(chan struct{}), kept: make([]byte, 0, readAtFirst)}
	w.changed.L = &w.mu
	go w.readAhead()
	return w
}

// Gone returns a channel. It is closed when the other side, the network or Close has ended
// the connection.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// readAhead reads ahead until the connection ends.
func (c *Conn) readAhead() {
	chunk := make([]byte, readAtFirst)
	for {
		n, err := c.Conn.Read(chunk)
		c.mu.Lock()
		for len(c.buf) > maxReadAhead && c.err == nil {
			c.changed.Wait()
		}
		if len(c.buf) == 0 {
			c.buf = c.kept
		}
		c.buf = append(c.buf, chunk[:n]...)
		if n == readAtFirst {
			chunk = make([]byte, readAtMost)
		}
		c.changed.Broadcast()
		if err != nil {
			c.endLocked(err)
		}
		ended := c.err != nil
		c.mu.Unlock()
		if ended {
			return
		}
	}
}

// endLocked reports the end of the connection, once. The caller holds mu.
func (c *Conn) endLocked(err error) {
	if c.err == nil {
		c.err = err
		close(c.gone)
		c.changed.Broadcast()
	}
}

// Read returns what was read ahead.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buf) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.changed.Wait()
	}
	n := copy(p, c.buf)
	c.buf = c.buf[n:]
	c.changed.Broadcast()
	return n, nil
}

// Close ends the connection.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(net.ErrClosed)
	return err
}

// SetReadDeadline ends the connection at t: after a Read that has taken too long, a driver does not use it again.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline = t; !t.IsZero() {
		c.alarm.set(t, c.expired)
	}
	return nil
}

// expired is called by the alarm, possibly for a deadline that has been moved.
func (c *Conn) expired() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alarm.reset()
	switch {
	case c.deadline.IsZero():
	case time.Now().Before(c.deadline):
		c.alarm.set(c.deadline, c.expired)
	default:
		c.endLocked(os.ErrDeadlineExceeded)
		_ = c.Conn.Close()
	}
}

// SetDeadline is SetReadDeadline, which ends Write, too.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
