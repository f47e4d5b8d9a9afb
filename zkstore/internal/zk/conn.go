package zk

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// maxFrame is the largest answer: a server's own limit is 1 MB unless configured.
	maxFrame = 64 << 20
	// writeTimeout limits a write that the network does not accept, unless configured.
	writeTimeout = 500 * time.Millisecond
)

// LostError is the error of a request whose connection was lost, or whose context ended, before the
// answer came. The server may have executed the request, or may still execute it.
type LostError struct{ Err error }

func (e *LostError) Error() string { return fmt.Sprintf("zookeeper: no answer: %v", e.Err) }
func (e *LostError) Unwrap() error { return e.Err }

// NotSentError is the error of a request that was not sent.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return fmt.Sprintf("zookeeper: not connected: %v", e.Err) }
func (e *NotSentError) Unwrap() error { return e.Err }

// conn is one connection of a session. The server answers requests in the order in which
// they were sent.
type conn struct {
	s  *Session
	n  int
	nc net.Conn
	// over is closed when the connection is closed.
	over chan struct{}

	mu      sync.Mutex
	err     error
	xid     int32
	pending []*Call
	head    int
	xids    []int32
	out     []byte
	spare   []byte
	writing bool
}

// send writes calls in one piece. If a write is under way, its goroutine writes these calls
// as well.
func (c *conn) send(calls ...*Call) error {
	sent := driver.Now()
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return &NotSentError{err}
	}
	for _, k := range calls {
		k.done, k.Sent, k.Conn = make(chan struct{}), sent, c.n
		c.xid++
		if c.xid < 0 {
			c.xid = 1
		}
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(8+len(k.body)))
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(c.xid))
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(k.op))
		c.out = append(c.out, k.body...)
		c.pending = append(c.pending, k)
		c.xids = append(c.xids, c.xid)
	}
	if c.writing {
		c.mu.Unlock()
		return nil
	}
	c.writing = true
	for c.err == nil && len(c.out) > 0 {
		out := c.out
		c.out = c.spare[:0]
		c.mu.Unlock()
		err := c.nc.SetWriteDeadline(time.Now().Add(cmp.Or(c.s.cfg.WriteTimeout, writeTimeout)))
		if err == nil {
			_, err = c.nc.Write(out)
		}
		c.mu.Lock()
		c.spare = out
		if err != nil {
			c.closeLocked(err)
		}
	}
	c.writing = false
	c.mu.Unlock()
	return nil
}

// close ends the connection. Its reader then fails the pending calls.
func (c *conn) close(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeLocked(err)
}

func (c *conn) closeLocked(err error) {
	if c.err == nil {
		c.err = err
		close(c.over)
		c.nc.Close()
	}
}

// next returns the call of an answer.
func (c *conn) next(xid int32) (*Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head == len(c.pending) {
		return nil, fmt.Errorf("zk: an answer to no request (xid %d)", xid)
	}
	if c.xids[c.head] != xid {
		return nil, fmt.Errorf("zk: the answer to request %d came where %d was due", xid, c.xids[c.head])
	}
	k := c.pending[c.head]
	c.pending[c.head] = nil
	c.head++
	if c.head == len(c.pending) {
		c.pending, c.xids, c.head = c.pending[:0], c.xids[:0], 0
	}
	return k, nil
}

// abandon fails all calls without an answer.
func (c *conn) abandon() {
	c.mu.Lock()
	left, err := c.pending[c.head:], c.err
	c.pending, c.xids, c.head = nil, nil, 0
	c.mu.Unlock()
	for _, k := range left {
		k.Err = &LostError{err}
		close(k.done)
	}
}

// read handles answers and events until the connection ends.
func (c *conn) read(r *bufio.Reader) error {
	var frame []byte
	for {
		var err error
		if frame, err = readFrame(r, frame); err != nil {
			return err
		}
		d := decoder{b: frame}
		xid, zxid, code := d.int32(), d.int64(), Error(d.int32())
		if d.bad {
			return errShort
		}
		switch xid {
		case xidEvent:
			e := Event{Type: EventType(d.int32())}
			d.int32() // the session's state, which the client derives itself
			e.Path = d.string()
			if d.bad {
				return errShort
			}
			if e.Type > 0 {
				c.s.cfg.OnEvent(e)
			}
			continue
		case xidAuth:
			if code != 0 {
				c.s.end(ErrAuthFailed)
				return ErrAuthFailed
			}
			continue
		}
		k, err := c.next(xid)
		if err != nil {
			return err
		}
		k.Zxid = zxid
		k.read(code, &d)
		c.s.answered(k, zxid, code)
		close(k.done)
		if code == ErrExpired || code == ErrMoved {
			return code // the next handshake shows whether the session is over
		}
		if errors.Is(k.Err, errShort) {
			return errShort
		}
	}
}

func readFrame(r *bufio.Reader, frame []byte) ([]byte, error) {
	head, err := r.Peek(4)
	if err != nil {
		return frame, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > maxFrame {
		return frame, fmt.Errorf("zk: a frame of %d bytes", n)
	}
	_, _ = r.Discard(4)
	if uint32(cap(frame)) < n {
		frame = make([]byte, n)
	}
	frame = frame[:n]
	_, err = io.ReadFull(r, frame)
	return frame, err
}

// errNoWelcome is the error of a handshake without an answer. The server may have no
// majority, or be behind the session's last transaction, or its port may require TLS.
var errNoWelcome = errors.New("the server ended the connection without an answer: it has no majority, lags behind, or requires TLS")

// noWelcome returns errNoWelcome for the end of a connection without an answer.
func noWelcome(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errNoWelcome
	}
	return err
}

// greeting returns the first request on a connection, of at least size bytes.
func greeting(id int64, passwd []byte, zxid int64, timeout time.Duration, size int) []byte {
	var e encoder
	e.int32(0) // its length, set below
	e.int32(0) // protocol version
	e.int64(zxid)
	e.int32(int32(min(timeout.Milliseconds(), 1<<30)))
	e.int64(id)
	e.bytes(passwd)
	e.bool(false) // no read-only server
	if fill := size + 4 - len(e.b); fill > 0 {
		e.b = append(e.b, make([]byte, fill)...)
	}
	binary.BigEndian.PutUint32(e.b, uint32(len(e.b)-4))
	return e.b
}

// handshake begins or continues the session on a new connection. sent is the instant before
// the request.
func handshake(nc net.Conn, r *bufio.Reader, id int64, passwd []byte, zxid int64, timeout time.Duration) (sent driver.Instant, newID int64, newPasswd []byte, got time.Duration, err error) {
	sent = driver.Now()
	if _, err = nc.Write(greeting(id, passwd, zxid, timeout, 0)); err != nil {
		return sent, 0, nil, 0, err
	}
	frame, err := readFrame(r, nil)
	if err = noWelcome(err); err != nil {
		return sent, 0, nil, 0, err
	}
	d := decoder{b: frame}
	d.int32()
	got = time.Duration(d.int32()) * time.Millisecond
	newID, newPasswd = d.int64(), d.bytes()
	return sent, newID, newPasswd, got, d.err()
}
