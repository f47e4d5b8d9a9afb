package sqlkit

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Conn is a network connection whose end is noticed as it comes, and not when
// somebody next reads, once Watch has been called: from then on a goroutine of its
// own reads ahead. It ends with the connection.
type Conn struct {
	net.Conn
	gone chan struct{}
	once sync.Once // closes gone

	mu       sync.Mutex
	reading  bool // directly
	watching bool // by the goroutine
	wanted   bool // to be watched, when the reader is done
	changed  sync.Cond
	buf      []byte // read, not yet asked for
	err      error  // why no more comes
	deadline time.Time
	timer    *time.Timer
}

// readAhead bounds what is kept for a reader that does not come.
const readAhead = 1 << 20

// NewConn wraps a connection.
func NewConn(c net.Conn) *Conn {
	w := &Conn{Conn: c, gone: make(chan struct{})}
	w.changed.L = &w.mu
	return w
}

// Watch begins to read ahead. It costs a goroutine, and every answer the change to
// another, so that it is for connections that are idle.
func (c *Conn) Watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watching || c.err != nil {
		return
	}
	if c.reading {
		c.wanted = true
		return
	}
	c.watchLocked()
}

func (c *Conn) watchLocked() {
	c.watching, c.wanted = true, false
	_ = c.Conn.SetReadDeadline(time.Time{}) // deadlines are ours from here on
	go c.pump()
}

// Gone is closed when nothing more will come: the other side or the network has
// ended the connection, or Close has.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

func (c *Conn) pump() {
	chunk := make([]byte, 16<<10)
	for {
		n, err := c.Conn.Read(chunk)
		c.mu.Lock()
		for len(c.buf) > readAhead && c.err == nil {
			c.changed.Wait()
		}
		c.buf = append(c.buf, chunk[:n]...)
		if err != nil && c.err == nil {
			c.err = err
		}
		ended := c.err != nil
		c.changed.Broadcast()
		c.mu.Unlock()
		if ended {
			c.end()
			return
		}
	}
}

func (c *Conn) end() { c.once.Do(func() { close(c.gone) }) }

func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	if !c.watching && c.err == nil {
		c.reading = true
		c.mu.Unlock()
		n, err := c.Conn.Read(p)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reading = false
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			if c.err == nil {
				c.err = err
			}
			c.end()
		}
		if c.wanted && c.err == nil {
			c.watchLocked()
		}
		return n, err
	}
	defer c.mu.Unlock()
	for {
		switch {
		case len(c.buf) > 0:
			n := copy(p, c.buf)
			if c.buf = c.buf[n:]; len(c.buf) == 0 {
				c.buf = c.buf[:0:cap(c.buf)]
			}
			c.changed.Broadcast()
			return n, nil
		case c.err != nil:
			return 0, c.err
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		c.changed.Wait()
	}
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
	if c.timer != nil {
		c.timer.Stop()
	}
	c.changed.Broadcast()
	return err
}

// SetReadDeadline bounds Read; the reading ahead goes on.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if !c.watching {
		return c.Conn.SetReadDeadline(t)
	}
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	return nil
}

// SetDeadline bounds Read and Write.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}
