package sqlkit

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Conn is a network connection whose end is noticed as it comes, and not when
// somebody next reads: between Watch and the next Read a goroutine of its own reads
// ahead. It ends with the connection.
type Conn struct {
	net.Conn
	gone chan struct{}
	once sync.Once // closes gone

	mu       sync.Mutex
	reading  bool // directly
	watching bool // by the goroutine
	back     bool // the goroutine has been called back
	stays    bool // and cannot be: it reads for everybody
	changed  sync.Cond
	buf      []byte // read, not yet asked for
	err      error  // why no more comes
	deadline time.Time
}

// readAhead bounds what is kept for a reader that does not come.
const readAhead = 1 << 20

// NewConn wraps a connection.
func NewConn(c net.Conn) *Conn {
	w := &Conn{Conn: c, gone: make(chan struct{}), stays: !patient(c)}
	w.changed.L = &w.mu
	return w
}

// patient tells whether a connection is known to live on after a deadline has ended a
// Read. Others may not (websockets do not): of those the goroutine that watches is not
// called back.
func patient(c net.Conn) bool {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

// late tells a deadline that has passed from an end of the connection, which a
// time-out of the network's own is.
func late(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}

// KeepAlive is how a store asks the network whether the other side of a connection of
// its own is there, which is all that ends a wait in the queue of a server that is gone.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Watch begins to read ahead, until the next Read: whoever reads sees the end by
// itself, and to pass every answer from one goroutine to another would cost more than
// many a statement. While somebody reads it does nothing.
func (c *Conn) Watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watching || c.reading || c.err != nil {
		return
	}
	c.watching = true
	_ = c.Conn.SetReadDeadline(time.Time{}) // deadlines are the readers'
	go c.pump()
}

// Gone is closed when nothing more will come: the other side or the network has
// ended the connection, or Close has.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

func (c *Conn) pump() {
	chunk := make([]byte, 4<<10)
	for {
		n, err := c.Conn.Read(chunk)
		c.mu.Lock()
		for len(c.buf) > readAhead && c.err == nil && !c.back {
			c.changed.Wait()
		}
		c.buf = append(c.buf, chunk[:n]...)
		if err != nil && c.err == nil && !(c.back && late(err)) {
			c.err = err
		}
		ended := c.err != nil
		if ended || c.back {
			c.watching, c.back = false, false
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

func (c *Conn) end() { c.once.Do(func() { close(c.gone) }) }

func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for c.watching && len(c.buf) == 0 && c.err == nil {
		if !c.back && !c.stays {
			// It ends the goroutine's Read, but for connections that know no deadlines.
			c.stays = c.Conn.SetReadDeadline(time.Unix(1, 0)) != nil
			c.back = !c.stays
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
	if err != nil && !late(err) {
		if c.err == nil {
			c.err = err
		}
		c.end()
	}
	return n, err
}

// Close ends the connection.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.end() // now, and not when the goroutine has noticed
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.changed.Broadcast()
	return err
}

// SetReadDeadline bounds Read; the reading ahead goes on.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.watching { // what the goroutine leaves behind
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline bounds Read and Write.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}
