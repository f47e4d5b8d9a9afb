package sqlkit

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Conn is a network connection that reports its end at once, and not only at the next Read.
// Between Watch and the next Read, a goroutine reads ahead to notice the end. There is one
// Read at a time.
type Conn struct {
	net.Conn
	gone chan struct{}
	once sync.Once // closes gone

	mu        sync.Mutex
	reading   bool // a caller reads from the network
	watching  bool // the goroutine reads from the network
	requested bool // Watch was called during the present Read
	stop      bool // a Read has requested that the goroutine stop
	permanent bool // the goroutine cannot be stopped, and reads for all callers
	changed   sync.Cond
	buf       []byte // read ahead and not yet returned
	err       error  // the error that ended reading
	deadline  time.Time
}

// maxReadAhead limits the bytes that are kept until the next Read.
const maxReadAhead = 1 << 20

// NewConn wraps a connection.
func NewConn(c net.Conn) *Conn {
	w := &Conn{Conn: c, gone: make(chan struct{}), permanent: !survivesDeadline(c)}
	w.changed.L = &w.mu
	return w
}

// survivesDeadline reports whether a connection of this type can be read again after a
// deadline has ended a Read. Other connections, such as websockets, may end at a deadline:
// Read does not stop their goroutine.
func survivesDeadline(c net.Conn) bool {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

// isDeadline reports whether err means that a deadline has passed. A timeout of the network
// (ETIMEDOUT) is not such an error: it ends the connection.
func isDeadline(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}

// KeepAlive configures the probes by which TCP detects a server that is gone. Nothing else
// ends a client's wait in the queue of such a server.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Watch starts a goroutine that reads ahead until the next Read. It is not started for each Read,
// because passing every answer to another goroutine costs more than many statements do.
//
// While a caller reads, the goroutine starts after that Read. pgx keeps a Read running after a
// statement whose write took long. That Read may return the server's last message, so that only
// another Read notices the end.
func (c *Conn) Watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading {
		c.requested = true
		return
	}
	c.watchLocked()
}

// watchLocked starts the goroutine, unless it runs. The caller holds mu.
func (c *Conn) watchLocked() {
	if c.watching || c.err != nil {
		return
	}
	c.watching = true
	_ = c.Conn.SetReadDeadline(time.Time{}) // deadlines apply to callers only
	go c.readAhead()
}

// Gone returns a channel. It is closed when the other side, the network or Close has ended
// the connection.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// readAhead reads ahead, until Read stops it or the connection ends.
func (c *Conn) readAhead() {
	chunk := make([]byte, 512) // small, since each held lock has one; usually only the end arrives
	for {
		n, err := c.Conn.Read(chunk)
		c.mu.Lock()
		for len(c.buf) > maxReadAhead && c.err == nil && !c.stop {
			c.changed.Wait()
		}
		c.buf = append(c.buf, chunk[:n]...)
		if err != nil && c.err == nil && !(c.stop && isDeadline(err)) {
			c.err = err
		}
		ended := c.err != nil
		if ended || c.stop {
			c.watching, c.stop = false, false
			_ = c.Conn.SetReadDeadline(c.deadline)
			c.changed.Broadcast()
			c.mu.Unlock()
			if ended {
				c.end()
			}
			return
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// end reports the end of the connection by Gone.
func (c *Conn) end() { c.once.Do(func() { close(c.gone) }) }

// Read stops the goroutine that reads ahead, and returns what that has read first.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for c.watching && len(c.buf) == 0 && c.err == nil {
		if !c.stop && !c.permanent {
			// The deadline ends the goroutine's Read. Some connections have no deadlines.
			c.permanent = c.Conn.SetReadDeadline(time.Unix(1, 0)) != nil
			c.stop = !c.permanent
		}
		c.changed.Wait()
	}
	if len(c.buf) > 0 {
		defer c.mu.Unlock()
		n := copy(p, c.buf)
		if c.buf = c.buf[n:]; len(c.buf) == 0 {
			c.buf = nil
		}
		c.changed.Broadcast()
		return n, nil
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	c.reading = true
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
	if err != nil && !isDeadline(err) {
		if c.err == nil {
			c.err = err
		}
		c.end()
	}
	if c.requested {
		c.requested = false
		c.watchLocked()
	}
	return n, err
}

// Close ends the connection.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.end() // before the goroutine notices
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.changed.Broadcast()
	return err
}

// SetReadDeadline limits Read. Reading ahead continues.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.watching { // readAhead sets the deadline when it ends
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline limits Read and Write.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}
