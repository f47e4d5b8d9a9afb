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
	s      *Session
	number int // 1 for the session's first connection
	nc     net.Conn
	over   chan struct{} // closed when the connection is closed

	mu  sync.Mutex
	err error // why the connection is closed, nil while it is open
	xid int32 // of the last request
	// pending are the calls without an answer, from the index head on.
	pending []*Call
	head    int
	// out are the requests that are not written yet. While a goroutine writes, writing is set.
	// spare is the buffer of the last write, for reuse.
	out, spare []byte
	writing    bool
}

// send writes calls in one piece. If a write is under way, its goroutine writes these calls
// as well.
func (c *conn) send(calls ...*Call) error {
	sent := driver.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return &NotSentError{c.err}
	}
	for _, k := range calls {
		c.xid++
		if c.xid < 0 { // negative numbers do not belong to a request
			c.xid = 1
		}
		k.done, k.Sent, k.Conn, k.xid = make(chan struct{}), sent, c.number, c.xid
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(8+len(k.body)))
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(c.xid))
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(k.op))
		c.out = append(c.out, k.body...)
		c.pending = append(c.pending, k)
	}
	if !c.writing {
		c.writeLocked()
	}
	return nil
}

// writeLocked writes all requests in out. It unlocks the mutex during each write.
func (c *conn) writeLocked() {
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
}

// close ends the connection. Then the method read returns, and its caller fails the pending calls.
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

// takePending removes the call with the number xid, which must be the first pending one.
func (c *conn) takePending(xid int32) (*Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head == len(c.pending) {
		return nil, fmt.Errorf("zk: an answer to no request (xid %d)", xid)
	}
	k := c.pending[c.head]
	if k.xid != xid {
		return nil, fmt.Errorf("zk: the answer to request %d came where %d was due", xid, k.xid)
	}
	c.pending[c.head] = nil
	c.head++
	if c.head == len(c.pending) {
		c.pending, c.head = c.pending[:0], 0
	}
	return k, nil
}

// failPending ends all calls without an answer. The connection is closed.
func (c *conn) failPending() {
	c.mu.Lock()
	unanswered, err := c.pending[c.head:], c.err
	c.pending, c.head = nil, 0
	c.mu.Unlock()
	for _, k := range unanswered {
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
			return errMalformed
		}
		switch {
		case xid == xidEvent:
			err = c.handleEvent(&d)
		case xid != xidAuth:
			err = c.handleAnswer(xid, zxid, code, &d)
		case code != 0:
			err = ErrAuthFailed
		}
		if xid == xidAuth && c.s.cfg.Refused != nil {
			c.s.cfg.Refused.Note(err)
		}
		if err == ErrAuthFailed {
			c.s.end(err)
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) handleEvent(d *decoder) error {
	e := Event{Type: EventType(d.int32())}
	d.int32() // the session's state, which the client derives itself
	e.Path = d.string()
	if d.bad {
		return errMalformed
	}
	if e.Type > 0 { // other events report the session's state
		c.s.cfg.OnEvent(e)
	}
	return nil
}

// handleAnswer ends the call of an answer. Its error ends the connection.
func (c *conn) handleAnswer(xid int32, zxid int64, code Error, d *decoder) error {
	k, err := c.takePending(xid)
	if err != nil {
		return err
	}
	k.Zxid = zxid
	k.decode(code, d)
	c.s.answered(k, zxid, code)
	close(k.done)
	switch {
	case code == ErrExpired || code == ErrMoved:
		return code // the next handshake shows whether the session is over
	case errors.Is(k.Err, errMalformed):
		return errMalformed
	}
	return nil
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

// errUnanswered is the error of a handshake without an answer. The server may have no
// majority, or be behind the session's last transaction, or its port may require TLS.
var errUnanswered = errors.New("the server ended the connection without an answer: it has no majority, lags behind, requires TLS, or is another kind of server")

// handshakeError returns errUnanswered if the server has ended the connection.
func handshakeError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errUnanswered
	}
	return err
}

// identity is what a client needs to continue its session on another connection.
type identity struct {
	id     int64
	passwd []byte
}

// newSession is the identity in the request for a new session.
var newSession = identity{passwd: make([]byte, 16)}

// connectRequest returns the first request on a connection, of at least size bytes. The server has
// to know the transaction zxid.
func connectRequest(of identity, zxid int64, timeout time.Duration, size int) []byte {
	var e encoder
	e.int32(0) // its length, set below
	e.int32(0) // protocol version
	e.int64(zxid)
	e.int32(int32(min(timeout, maxTimeout).Milliseconds()))
	e.int64(of.id)
	e.bytes(of.passwd)
	e.bool(false) // no read-only server
	if fill := size + 4 - len(e.b); fill > 0 {
		e.b = append(e.b, make([]byte, fill)...)
	}
	binary.BigEndian.PutUint32(e.b, uint32(len(e.b)-4))
	return e.b
}

// maxTimeout is a session timeout that is longer than every server allows.
const maxTimeout = 1 << 30 * time.Millisecond

// handshake begins or continues a session on a new connection. It returns the session's identity
// and its timeout, and ErrExpired if the server does not have the session.
func handshake(nc net.Conn, r *bufio.Reader, of identity, zxid int64, timeout time.Duration) (identity, time.Duration, error) {
	if _, err := nc.Write(connectRequest(of, zxid, timeout, 0)); err != nil {
		return identity{}, 0, err
	}
	frame, err := readFrame(r, nil)
	if err != nil {
		return identity{}, 0, handshakeError(err)
	}
	d := decoder{b: frame}
	d.int32() // protocol version
	granted := time.Duration(d.int32()) * time.Millisecond
	session := identity{d.int64(), d.bytes()}
	switch {
	case d.bad:
		return identity{}, 0, errMalformed
	case session.id == 0 || granted <= 0:
		return identity{}, 0, ErrExpired
	}
	return session, granted, nil
}
